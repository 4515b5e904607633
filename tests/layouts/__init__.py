"""Layouts proved by numbers: what PyTorch computes, NumPy computes with Burn's equations on the converted weights."""
