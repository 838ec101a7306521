"""Trainers: how a field is fitted to the path at a fixed t (Eq. 4 and 6)."""

from pgps.trainers.base import AbstractTrainer, Training
from pgps.trainers.gradient import Gradient, LearningRateDrop
from pgps.trainers.least_squares import LeastSquares
from pgps.trainers.none import NoTraining
from pgps.trainers.residual import mean_square, residual, variance

__all__ = [
    "AbstractTrainer",
    "Gradient",
    "LearningRateDrop",
    "LeastSquares",
    "NoTraining",
    "Training",
    "mean_square",
    "residual",
    "variance",
]
