"""The operations on files: convert, map, merge, diff, verify, inspect, explain, report, scan, migrate, skeleton."""
