"""Check every rule, checksum and tensor of a file."""
