"""Adjustments: moves that bring particles back to p_t after a step (Algorithm 2)."""

from pgps.adjustments.base import AbstractAdjustment, Adjustment
from pgps.adjustments.hmc import HMC, hmc_step
from pgps.adjustments.langevin import Langevin, langevin_step
from pgps.adjustments.mala import MALA, mala_step
from pgps.adjustments.none import NoAdjustment

__all__ = [
    "HMC",
    "MALA",
    "AbstractAdjustment",
    "Adjustment",
    "Langevin",
    "NoAdjustment",
    "hmc_step",
    "langevin_step",
    "mala_step",
]
