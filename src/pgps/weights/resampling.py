"""Resampling: particles are copied in proportion to their weights."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pgps.noise import draw_uniform

Scheme = Callable[[Array, Float[Array, " n"]], Int[Array, " n"]]
"""(key, log_weights) -> the indices of the chosen particles."""


def _comb(key: Array, weights: Float[Array, " n"], num_teeth: int | Int[Array, ""]) -> Int[Array, " n"]:
    """The particles under the teeth (i + u) / num_teeth for i < n, of which the first `num_teeth` lie within 1."""
    # Parallel sums wobble: a particle without weight must not rise above its neighbour, or it could be chosen.
    sums = jax.lax.cummax(jnp.where(weights > 0, jnp.cumsum(weights), 0.0))
    teeth = (jnp.arange(len(weights)) + draw_uniform(key, 1, sums.dtype)) / num_teeth * sums[-1]
    # The last tooth may round up to the end of the sums, where there is no particle left.
    indices = jnp.searchsorted(sums, jnp.minimum(teeth, jnp.nextafter(sums[-1], 0)), side="right")
    return indices.astype(int)  # as jnp.arange has it


def systematic(key: Array, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Indices of the chosen particles: one uniform number u sets the whole comb (i + u) / n.

    Particle i is chosen floor(n W_i) or ceil(n W_i) times, and n W_i times on average.
    """
    return _comb(key, jnp.exp(log_weights - jnp.max(log_weights)), log_weights.shape[0])


def residual(key: Array, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Indices of the chosen particles: floor(n W_i) copies of each, and the rest by a comb over what is left of n W_i.

    Counts are those of `systematic`, floor(n W_i) or ceil(n W_i) and n W_i on average; which particles are chosen
    together depends on their remainders alone.
    """
    num = log_weights.shape[0]
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    expected = num * (weights / jnp.sum(weights))
    counts = jnp.floor(expected).astype(int)
    num_left = num - jnp.sum(counts)
    remainders = expected - counts
    # Rounding may leave copies to give out and no remainders to go by.
    remainders = jnp.where(jnp.any(remainders > 0), remainders, weights)
    chosen = _comb(key, remainders, jnp.maximum(num_left, 1))
    counts = counts.at[chosen].add(jnp.arange(num) < num_left)
    return jnp.repeat(jnp.arange(num), counts, total_repeat_length=num)
