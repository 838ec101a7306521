"""No adjustment: settings A and B of the paper."""

import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from pgps.adjustments.base import AbstractAdjustment, Adjustment, Evaluate
from pgps.density import Evaluations, Population


class NoAdjustment(AbstractAdjustment):
    """Leaves the particles where the field has put them."""

    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Return the population as it is."""
        return population, memory, Adjustment(jnp.asarray(0), Evaluations())
