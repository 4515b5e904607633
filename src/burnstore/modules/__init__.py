"""Models: how to walk one, take its tensors and put others in."""
