"""Ascents to maxima of a density, many at once: BFGS with one gradient call per iteration.

An iteration tries x + a H g, with g the gradient and H the inverse of the curvature as far as known, and takes it if
the density rises as it should (Armijo); if not, a shrinks. The ascents end together, when each has little to gain
as far as it knows, g'Hg / 2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

_LEAST_GAIN = 1e-4
_SHRINK = 0.3
# The first try is a step of this length, in units of the scale.
_FIRST_STEP = 0.5
# An ascent has arrived when it is so near to the top, in standard deviations of a Gaussian with the curvature that it
# knows. Of that it knows little before so many steps, and one more for each dimension.
_ARRIVED = 0.01
_LEAST_STEPS = 10


class Ascent(NamedTuple):
    """Where an ascent has come to."""

    x: Float[Array, " dim"]
    value: Scalar
    gradient: Float[Array, " dim"]
    covariance: Float[Array, "dim dim"]
    """The inverse of the negative Hessian, as far as the steps tell."""
    length: Scalar


def ascend(
    logdensity_fn: Callable[[Float[Array, " dim"]], Scalar],
    starts: Float[Array, "n dim"],
    scale: Float[Array, " dim"],
    most_steps: int,
) -> tuple[Ascent, Int[Array, ""]]:
    """Ascend from each start, with at most so many gradient calls; a start outside the support keeps the value -inf.

    Returned with the ascents is how many calls each of them made.
    """
    covariance, zero = jnp.diag(scale**2), jnp.zeros((), starts.dtype)

    def begin(start: Float[Array, " dim"]) -> Ascent:
        # The first call is at the start itself.
        return Ascent(start, zero - jnp.inf, jnp.zeros_like(start), covariance, zero)

    def step(now: Ascent) -> Ascent:
        x = now.x + now.length * now.covariance @ now.gradient
        value, gradient = jax.value_and_grad(logdensity_fn)(x)
        usable = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        return _taken(now, x, jnp.where(usable, value, -jnp.inf), jnp.where(usable, gradient, 0.0), scale)

    def underway(carry: tuple[Ascent, Int[Array, ""]]) -> Bool[Array, ""]:
        now, count = carry
        squares = jnp.einsum("ni,nij,nj->n", now.gradient, now.covariance, now.gradient)
        return (count < most_steps) & ((count < _LEAST_STEPS + len(scale)) | jnp.any(squares >= _ARRIVED**2))

    return jax.lax.while_loop(
        underway, lambda carry: (jax.vmap(step)(carry[0]), carry[1] + 1), (jax.vmap(begin)(starts), jnp.asarray(0))
    )


def _taken(
    now: Ascent, x: Float[Array, " dim"], value: Scalar, gradient: Float[Array, " dim"], scale: Float[Array, " dim"]
) -> Ascent:
    """The ascent after a try."""
    is_first = now.value == -jnp.inf
    hoped = now.length * now.gradient @ now.covariance @ now.gradient
    good = (value > -jnp.inf) & (is_first | (value >= now.value + _LEAST_GAIN * hoped))
    updated, curved = _updated(now.covariance, x - now.x, now.gradient - gradient)
    shorter = _FIRST_STEP / jnp.maximum(jnp.linalg.norm(gradient * scale), 1e-8)
    covariance = jnp.where(is_first, shorter * now.covariance, jnp.where(curved, updated, now.covariance))
    after = Ascent(x, value, gradient, covariance, jnp.ones_like(now.length))
    before = now._replace(length=_SHRINK * now.length)
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), after, before)


def _updated(
    covariance: Float[Array, "dim dim"], step: Float[Array, " dim"], change: Float[Array, " dim"]
) -> tuple[Float[Array, "dim dim"], Bool[Array, ""]]:
    """BFGS's update, and whether the density is curved as around a maximum along the step."""
    product = step @ change
    curved = product > 1e-10
    rate = 1 / jnp.where(curved, product, 1.0)
    # (I - rate s y^T) H (I - rate y s^T) + rate s s^T, without products of matrices.
    turned = rate * covariance @ change
    updated = covariance - jnp.outer(turned, step) - jnp.outer(step, turned)
    updated += (rate * change @ turned + rate) * jnp.outer(step, step)
    return updated, curved & jnp.all(jnp.isfinite(updated))
