"""Burn itself beside burnstore: every claim of compatibility shown by running the original.

    make interop        the newest stable Burn
    make interop-all    every version that `interop/` has a program for

`program` runs real Burn, `zoo` declares its models in Python, `contents` makes random files, `across` compares what
both read and write, `matrix` says who reads whom. Collected by pytest only where asked for by name, because building
Burn takes minutes.
"""
