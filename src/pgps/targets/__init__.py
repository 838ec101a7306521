"""Targets whose truth is known: log-density, log evidence, exact sampler, mode masses."""

from pgps.targets.base import AbstractTarget
from pgps.targets.funnel import Funnel, funnel
from pgps.targets.mixtures import (
    AbstractMixture,
    GaussianMixture,
    false_mode,
    forty_gaussians,
    mode_discovery,
    nine_gaussians,
    two_modes,
    weight_recovery,
)
from pgps.targets.student import StudentMixture, student_t_mixture
from pgps.targets.wells import ManyWell, many_well

__all__ = [
    "AbstractMixture",
    "AbstractTarget",
    "Funnel",
    "GaussianMixture",
    "ManyWell",
    "StudentMixture",
    "false_mode",
    "forty_gaussians",
    "funnel",
    "many_well",
    "mode_discovery",
    "nine_gaussians",
    "student_t_mixture",
    "two_modes",
    "weight_recovery",
]
