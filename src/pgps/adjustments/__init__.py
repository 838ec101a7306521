"""Adjustments: moves that bring particles back to p_t after a step (Algorithm 2)."""

from pgps.adjustments.base import AbstractAdjustment, Adjustment
from pgps.adjustments.langevin import Langevin, langevin_step
from pgps.adjustments.none import NoAdjustment

__all__ = ["AbstractAdjustment", "Adjustment", "Langevin", "NoAdjustment", "langevin_step"]
