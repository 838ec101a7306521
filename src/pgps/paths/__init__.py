"""Paths p_t from the initial law (t = 0) to the target (t = 1): section 3.1 of the paper."""

from pgps.paths.base import AbstractPath, PathValue, evaluate, temper
from pgps.paths.cautious_shrinkage import CautiousShrinkage
from pgps.paths.geometric import Geometric
from pgps.paths.log_weighted_shrinkage import LogWeightedShrinkage

__all__ = ["AbstractPath", "CautiousShrinkage", "Geometric", "LogWeightedShrinkage", "PathValue", "evaluate", "temper"]
