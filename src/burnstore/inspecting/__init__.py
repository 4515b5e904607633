"""Inspecting: what a file holds, as data."""
