"""Bytes and tensors: one package per format, codecs, shards, and the registry that finds a format."""
