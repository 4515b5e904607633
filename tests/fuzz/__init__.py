"""Hostile Burnpack files by the million: mutators, an oracle, and the command that runs them.

    python -m tests.fuzz.run --mutants 5000000 --seed 1 --minutes 20 --jobs 2

`mutate` edits bytes, `structure` edits fields of the metadata, `seeds` are what they start from, `reference` is a slow
reader of its own, and `oracle` says whether what burnstore did with a file is right. `safetensors_corpus` and
`safetensors_oracle` are the same for SafeTensors (``--format safetensors``), where the package itself is the reference.
"""
