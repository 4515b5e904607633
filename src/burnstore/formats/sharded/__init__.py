"""Checkpoints of several files with an index: locate, read, write, and resume them."""
