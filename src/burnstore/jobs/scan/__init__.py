"""Which code other programs would run when they load a file."""
