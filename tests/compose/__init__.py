"""Compositions: random contents, files, options, targets and verbs together, judged by a slow reference.

    python -m tests.compose.run --cases 100000 --seed 1

`contents` makes models, `cases` draws a composition in the words of `terms`, `reference` states what must come out,
`run` executes it with burnstore and compares. `holes` puts known mistakes back, and counts the cases until found.
"""
