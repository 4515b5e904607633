"""Fluent builders of a pipeline with a place: BurnpackStore, SafetensorsStore, PytorchStore, records."""
