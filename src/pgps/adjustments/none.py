"""No adjustment: settings A and B of the paper."""

import jax.numpy as jnp
from jaxtyping import Array, Scalar

from pgps.adjustments.base import AbstractAdjustment, Adjustment
from pgps.density import Evaluations, Population, Problem
from pgps.paths.base import AbstractPath


class NoAdjustment(AbstractAdjustment):
    """Leaves the particles where the field has put them."""

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, path: AbstractPath, problem: Problem
    ) -> tuple[Population, Adjustment]:
        """Return the population as it is."""
        return population, Adjustment(jnp.asarray(0), Evaluations())
