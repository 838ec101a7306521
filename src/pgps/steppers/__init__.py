"""Steppers: how far t moves in one step (Algorithm 1)."""

from pgps.steppers.base import AbstractStepper, Clock
from pgps.steppers.conditional_ess import ConditionalESS, conditional_ess
from pgps.steppers.fixed import Fixed
from pgps.steppers.ladder import Ladder
from pgps.steppers.particle_step import ParticleStep

__all__ = ["AbstractStepper", "Clock", "ConditionalESS", "Fixed", "Ladder", "ParticleStep", "conditional_ess"]
