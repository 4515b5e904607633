"""Sources, atomic writes, paths, workers and the transfer to a GPU; the only room that assumes a local file."""
