"""Find the code that other programs would run when they load a file."""
