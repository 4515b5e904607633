"""The only code that meets raw encodings from strangers: strict, iterative, bounded."""
