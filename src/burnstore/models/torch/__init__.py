"""The binding of PyTorch models."""
