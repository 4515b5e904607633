"""Verifying: whether a file is what it claims to be, to the last byte."""
