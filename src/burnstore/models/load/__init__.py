"""How values reach the slots of a model: in place, over a GPU, cast, shared."""
