"""Bijectors: densities of positive, bounded, ordered numbers and of probabilities, without deriving a Jacobian."""

from pgps.bijectors.base import AbstractBijector
from pgps.bijectors.identity import Identity
from pgps.bijectors.interval import Interval
from pgps.bijectors.ordered import Ordered
from pgps.bijectors.positive import Positive
from pgps.bijectors.simplex import Simplex
from pgps.bijectors.unconstrain import Unconstrained, unconstrain, unconstrain_law

__all__ = [
    "AbstractBijector",
    "Identity",
    "Interval",
    "Ordered",
    "Positive",
    "Simplex",
    "Unconstrained",
    "unconstrain",
    "unconstrain_law",
]
