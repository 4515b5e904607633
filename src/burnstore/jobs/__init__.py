"""What people come for: convert, merge, diff, verify, inspect, explain, report, scan, migrate, config."""
