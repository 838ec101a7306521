"""Samplers: each takes a problem's particles from the initial law towards the target, one `step` at a time."""

from pgps.methods.base import AbstractMethod, State
from pgps.methods.langevin import Langevin
from pgps.methods.pgps import PGPS

__all__ = ["PGPS", "AbstractMethod", "Langevin", "State"]
