"""Merging: several files as one, by overlaying or blending their tensors."""
