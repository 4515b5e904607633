"""Prove a mapping by the outputs of the models on both sides."""
