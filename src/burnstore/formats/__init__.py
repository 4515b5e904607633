"""Formats: bytes to entries and back; they know nothing of models."""
