"""One question, one answer: the same source, model and options asked of every verb through the public surface.

`questions` has the sources, models and options, `ways` the verbs that answer, `exceptions` the one table of answers
that may differ, each with the reason and the place where the documentation says so.
"""
