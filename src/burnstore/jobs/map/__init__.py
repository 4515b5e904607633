"""Find which tensor of a checkpoint belongs to which tensor of a Burn model."""
