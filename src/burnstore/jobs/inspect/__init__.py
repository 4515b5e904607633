"""Describe what a file contains."""
