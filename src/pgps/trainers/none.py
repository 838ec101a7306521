"""No training, for fields with nothing to fit: training-free PGPS, or a field that is known exactly."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from pgps.density import Population
from pgps.fields.base import AbstractField
from pgps.trainers.base import AbstractTrainer, Training
from pgps.trainers.residual import mean_square


class NoTraining(AbstractTrainer):
    """Leaves the field as it is, and reports its loss (Eq. 6)."""

    def init(self, params: PyTree) -> None:
        """Nothing to carry."""
        return None

    def fit(
        self,
        key: Array,
        t: Scalar,
        population: Population,
        field: AbstractField,
        params: PyTree,
        memory: None,
        log_weights: Float[Array, " n"] | None = None,
    ) -> tuple[PyTree, None, Training]:
        """Return the parameters as they are."""
        params = field.observe(params, population)
        velocity, divergence = field.flows(params, t, population.particles, key)
        loss = mean_square(velocity, divergence, population)
        return params, None, Training(loss, jnp.asarray(0), jnp.asarray(True))
