"""The command line: one file per verb; the only part of the library that prints."""
