"""The gallery of `rust/gallery`: well-known models, from PyTorch into real Burn, with equal outputs.

`sources` makes random models of PyTorch, `expected` states which of their tensors is which of Burn's, `convert` follows
that in NumPy. Collected by pytest only where asked for by name (``make interop``), because building Burn takes minutes;
``GALLERY`` names the cases that run, ``all`` for every one.
"""
