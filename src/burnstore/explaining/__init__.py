"""Explaining: what loading or converting would do, before any tensor is read."""
