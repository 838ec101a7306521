"""Weights: exact importance weights of particles, resampling, and the evidence that comes with them."""

from pgps.weights.resampling import systematic
from pgps.weights.weights import Weights, effective_sample_size

__all__ = ["Weights", "effective_sample_size", "systematic"]
