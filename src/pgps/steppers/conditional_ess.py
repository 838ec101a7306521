"""The adaptive ladder of SMC samplers: the largest dt that keeps the conditional effective sample size.

    CESS(dt) / N = (sum_i W_i exp(dt r_i))^2 / sum_i W_i exp(2 dt r_i)  >=  target

where r_i is the rate at which particle i's log-weight grows and W_i its normalised weight (Zhou, Johansen and Aston
2016). For equal weights it is the usual effective sample size of the increments.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from pgps import _checks
from pgps.steppers.base import AbstractStepper

# Halvings of the interval that dt is sought in: to a billionth of what is left of t.
_NUM_HALVINGS = 30


def conditional_ess(log_weights: Float[Array, " n"], increments: Float[Array, " n"]) -> Scalar:
    """The conditional effective sample size of log-weight increments, as a share of 1."""
    # A particle of weight 0 counts for nothing, whatever its increment.
    increments = jnp.where(log_weights == -jnp.inf, -jnp.inf, increments)
    first = jax.nn.logsumexp(log_weights + increments)
    second = jax.nn.logsumexp(log_weights + 2 * increments)
    return jnp.exp(2 * first - second - jax.nn.logsumexp(log_weights))


class ConditionalESS(AbstractStepper):
    """The largest time step whose conditional effective sample size stays at the target.

    Args:
        target: The share of the particles that must remain effective, in (0, 1).
        max_dt: The largest time step.
    """

    target: float = 0.9
    max_dt: float = 1.0

    def __check_init__(self):
        _checks.between("target", self.target, 0, 1)
        _checks.within("max_dt", self.max_dt, 0, 1, open_low=True)

    def time_step(
        self, t: Scalar, velocity: Float[Array, "n dim"], rates: Float[Array, " n"], log_weights: Float[Array, " n"]
    ) -> Scalar:
        """The largest dt, by bisection, since the conditional ESS falls as dt grows."""
        largest = jnp.minimum(self.max_dt, 1 - t)

        def enough(dt: Scalar) -> Bool[Array, ""]:
            return conditional_ess(log_weights, dt * rates) >= self.target

        def halve(_: Int[Array, ""], bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
            low, high = bounds
            middle = 0.5 * (low + high)
            good = enough(middle)
            return jnp.where(good, middle, low), jnp.where(good, high, middle)

        low, high = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, (jnp.zeros_like(largest), largest))
        # Where even the smallest step is too large (particles that leave the support), go on by it all the same.
        return jnp.where(enough(largest), largest, jnp.where(low > 0, low, high))
