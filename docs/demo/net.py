"""The model of model.pt, declared with Burn's layers: what the Rust program has."""

from burnstore import nn


class Net(nn.Module):
    """A small text classifier."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(200, 16)
        self.encoder = nn.TransformerEncoder(16, 32, 2, 2)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)
