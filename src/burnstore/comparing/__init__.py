"""Comparing: what two sets of tensors have in common, and by how much the rest differs."""
