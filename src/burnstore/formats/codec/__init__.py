"""Strict decoders and encoders for the encodings that formats are built on."""
