"""Stores: a format with the transforms around it, configured step by step; the seeds' fluent API."""
