"""Layers of every kind, with the options that lead to other kernels, and CRFs of every kind of potentials."""

from probtx_pyro import nn

E, H = 8, 2
LAYERS = {
    **{name: (cls, {}) for name, cls in nn.ATTENTIONS.items()},
    "shifted keys": (nn.GaussianKeysAttention, {"share": "shift", "num_components": 3}),
    "gated memory": (nn.RegressionMemoryAttention, {"gates": True, "chunk_size": 2}),
    "gated delta": (nn.RegressionMemoryAttention, {"gates": True, "update": "delta"}),
}
CRFS = {
    "full rank": {"num_channels": 2},
    "low rank": {"num_channels": 2, "rank": 3},
    "distances": {"num_channels": 1, "distances": (2, 3)},
    "distances, low rank": {"num_channels": 2, "rank": 2, "distances": (3,), "shared": True},
    "root and nodes": {"num_channels": 1, "root_labels": 2, "nodes": {"number": 3}},
}
