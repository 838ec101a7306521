"""The adaptive ladder of SMC samplers: the largest dt that keeps the conditional effective sample size.

    CESS(dt) / N = (sum_i W_i exp(dt r_i))^2 / sum_i W_i exp(2 dt r_i)  >=  target

where r_i is the rate at which particle i's log-weight grows and W_i its normalised weight (Zhou, Johansen and Aston
2016). For equal weights it is the usual effective sample size of the increments.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.steppers.base import AbstractStepper

# So many time steps are tried at once, from a billionth of what is left of t on, each this many times as long as the
# one before; then as many between the longest that is short enough and the next one.
_NUM_TRIED = 16
_RATIO = 4.0


def conditional_ess(log_weights: Float[Array, " n"], increments: Float[Array, " n"]) -> Scalar:
    """The conditional effective sample size of log-weight increments, as a share of 1."""
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    # A particle of weight 0 counts for nothing, whatever its increment.
    increments = jnp.where(weights > 0, increments, -jnp.inf)
    factors = jnp.exp(increments - jnp.max(increments))
    return (weights @ factors) ** 2 / (weights @ factors**2 * jnp.sum(weights))


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
        """The largest dt: a bracket from the steps that are tried, since the conditional ESS falls as dt grows."""
        largest = jnp.minimum(self.max_dt, 1 - t)
        allowed = -jnp.log(self.target)
        numbers = jnp.arange(_NUM_TRIED, dtype=largest.dtype)

        def tried(dts: Float[Array, " tried"]) -> tuple[Float[Array, " tried"], Int[Array, ""]]:
            """What each step costs, -ln CESS, and how many of them, from the shortest on, cost no more than allowed."""
            costs = -jnp.log(jax.vmap(lambda dt: conditional_ess(log_weights, dt * rates))(dts))
            return costs, jnp.sum(jnp.cumprod(costs <= allowed))

        coarse = largest * _RATIO ** (numbers - (_NUM_TRIED - 1))
        _, num_coarse = tried(coarse)
        fine = coarse[jnp.maximum(num_coarse - 1, 0)] * _RATIO ** (numbers / (_NUM_TRIED - 1))
        costs, num_fine = tried(fine)
        # Between two of them the cost is a power of dt, about dt^2.
        last = jnp.clip(num_fine - 1, 0, _NUM_TRIED - 2)
        logs = jnp.log(costs)
        share = (jnp.log(allowed) - logs[last]) / (logs[last + 1] - logs[last])
        between = fine[last] * _RATIO ** (jnp.where((share > 0) & (share < 1), share, 0.0) / (_NUM_TRIED - 1))
        # Where even the smallest step is too large (particles that leave the support), go on by it all the same.
        return jnp.where(num_coarse == _NUM_TRIED, largest, jnp.where(num_coarse == 0, coarse[0], between))
