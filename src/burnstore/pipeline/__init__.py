"""Move tensors from a source to a target: options, plan, execution."""
