"""Merge the tensors of several files into one."""
