"""Pure functions on snapshots: filter, rename, index, adapt, cast, slice, and the layouts of both frameworks."""
