"""Report on a file of tensors, or on the difference of two, as one HTML page."""
