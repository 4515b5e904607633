"""Print what a load will do before it does it."""
