"""The interface of a stepper, and the clock that takes t from 0 to exactly 1."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

# A remainder of so many units in the last place of 1 is rounding: it is taken along with the step.
_SLACK = 16


class AbstractStepper(eqx.Module):
    """Chooses the time step dt."""

    @abc.abstractmethod
    def time_step(
        self, t: Scalar, velocity: Float[Array, "n dim"], rates: Float[Array, " n"], log_weights: Float[Array, " n"]
    ) -> Scalar:
        """The time step from t.

        Args:
            t: The time.
            velocity: The field's values at the particles.
            rates: How fast each particle's log-weight grows with t: the field's residual there.
            log_weights: The particles' log-weights.
        """


class Clock(eqx.Module):
    """Time t, summed with compensation (Kahan), so that float32 leaves no residue: t ends at exactly 1."""

    t: Scalar
    excess: Scalar

    @classmethod
    def start(cls, dtype: jnp.dtype) -> "Clock":
        """The clock at t = 0."""
        return cls(jnp.zeros((), dtype), jnp.zeros((), dtype))

    def advance(self, dt: Scalar) -> tuple["Clock", Scalar]:
        """Advance by dt, or to 1 if that is as near; returns the new clock and the step that was taken."""
        remaining = (1 - self.t) + self.excess
        last = remaining <= dt + _SLACK * jnp.finfo(self.t.dtype).eps
        increment = dt - self.excess
        t = self.t + increment
        excess = (t - self.t) - increment
        clock = Clock(jnp.where(last, 1.0, t), jnp.where(last, 0.0, excess))
        return clock, jnp.where(last, remaining, dt)


def crossings(before: Scalar, after: Scalar, spacing: Float[Array, ""] | float) -> Scalar:
    """How many multiples of `spacing` lie in (before, after], rounding forgiven."""
    # A few units in the last place: more would count a fine step that ends just below a coarse multiple.
    forgiving = 1 + 8 * jnp.finfo(after.dtype).eps
    return jnp.floor(after / spacing * forgiving) - jnp.floor(before / spacing * forgiving)
