"""Weights: exact importance weights of particles, resampling, and the evidence that comes with them."""

from pgps.weights.pareto import pareto_k
from pgps.weights.resampling import residual, systematic
from pgps.weights.weighing import Weighing
from pgps.weights.weights import Weights, effective_sample_size

__all__ = ["Weighing", "Weights", "effective_sample_size", "pareto_k", "residual", "systematic"]
