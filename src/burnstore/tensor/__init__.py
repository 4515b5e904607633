"""One tensor: dtype, quantization, scalars, parameter ids, data, snapshots, NumPy and torch conversion."""
