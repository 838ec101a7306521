"""Steppers: how far t moves in one step (Algorithm 1)."""

from pgps.steppers.base import AbstractStepper, Clock
from pgps.steppers.fixed import Fixed
from pgps.steppers.particle_step import ParticleStep

__all__ = ["AbstractStepper", "Clock", "Fixed", "ParticleStep"]
