"""Samplers: each takes a problem's particles from the initial law towards the target, one `step` at a time."""

from pgps.methods.annealed_langevin import AnnealedLangevin
from pgps.methods.base import AbstractMethod, State
from pgps.methods.langevin import Langevin
from pgps.methods.mala import MALA
from pgps.methods.pfg import PFG, functional_gradient
from pgps.methods.pgps import PGPS
from pgps.methods.sgld import SGLD
from pgps.methods.smc import TemperedSMC
from pgps.methods.svgd import SVGD

__all__ = [
    "MALA",
    "PFG",
    "PGPS",
    "SGLD",
    "SVGD",
    "AbstractMethod",
    "AnnealedLangevin",
    "Langevin",
    "State",
    "TemperedSMC",
    "functional_gradient",
]
