"""Transforms of snapshots: which ones, under which names, in which form. All lazy, none reads data."""
