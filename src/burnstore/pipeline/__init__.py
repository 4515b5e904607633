"""The one way of a tensor from a source to a target: options, plan, execution."""
