"""Whitened features: centred, uncorrelated and of one scale, by the statistics of public pictures that no client owns.

Softmax regression has the smoothness L = λ/2, with λ the largest eigenvalue of the mean of x xᵀ. A backbone's features
have a large common mean, so that λ belongs to a direction that tells nothing apart, and steps that suit L move along
nothing else. Whitened features have no such direction.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor, nn

from cflag.backbones.base import Backbone
from cflag.backbones.features import Extractor
from cflag.data.source import Source, Split
from cflag.errors import UserError
from cflag.process import one_thread

MOST = 10_000
"""Public pictures whose statistics are taken: the first of every so many."""
SHRINK = 1.0
"""How much of the mean variance is added to every direction's, so that those nearly without any are not blown up."""


def whitened(plain: Extractor, public: Source) -> Backbone:
    """Return the backbone with one more layer, which whitens the features of public pictures."""
    few = public.train.x[:: -(-len(public.train) // MOST)]
    half = Split(few, torch.zeros(len(few), dtype=torch.long))
    x = plain.source(replace(public, train=half, test=half)).train.x.double()
    if len(x) < x.shape[1]:
        raise UserError(
            f"whiten = '{public.name}': {len(x):,} pictures are too few for {x.shape[1]:,} features; it takes at "
            "least as many"
        )
    return replace(plain.backbone, module=nn.Sequential(plain.backbone.module, whitening_layer(x)))


def whitening_layer(x: Tensor) -> nn.Linear:
    """Return y = F⁻¹ (x − μ), with F Fᵀ the covariance of some features, shrunk."""
    width, mean = x.shape[1], x.mean(0)
    with one_thread():
        covariance = (x - mean).t() @ (x - mean) / len(x)
        covariance += SHRINK * covariance.diagonal().mean() * torch.eye(width, dtype=x.dtype)
        factor = torch.linalg.cholesky(covariance)
        weight = torch.linalg.solve_triangular(factor, torch.eye(width, dtype=x.dtype), upper=False)
    layer = nn.Linear(width, width)
    layer.weight.data, layer.bias.data = weight.float(), (-weight @ mean).float()
    return layer


def origin_of(plain: Extractor, public: Source) -> str:
    """Return what clients must have in common: the backbone, and the public pictures.

    Not the layer itself: processors may differ in its last bits, as they do in those of features.
    """
    summed = hashlib.sha256(f"whitened {MOST} {SHRINK} {plain.origin}".encode())
    summed.update(public.train.x.contiguous().numpy().data)
    return summed.hexdigest()
