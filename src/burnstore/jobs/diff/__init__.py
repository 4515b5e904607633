"""Compare two files, models or mappings tensor by tensor."""
