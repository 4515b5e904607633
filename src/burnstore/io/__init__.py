"""Where bytes come from and go to: sources, and the one way to replace a file."""
