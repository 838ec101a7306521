"""Resampling: particles are copied in proportion to their weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def systematic(key: Array, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Indices of the chosen particles: one uniform number u sets the whole comb (i + u) / n.

    Particle i is chosen floor(n W_i) or ceil(n W_i) times, and n W_i times on average.
    """
    num = log_weights.shape[0]
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    # Parallel sums wobble: a particle without weight must not rise above its neighbour, or it could be chosen.
    sums = jax.lax.cummax(jnp.where(weights > 0, jnp.cumsum(weights), 0.0))
    comb = (jnp.arange(num) + jax.random.uniform(key, (), sums.dtype)) / num * sums[-1]
    # The last tooth may round up to the end of the sums, where there is no particle left.
    return jnp.searchsorted(sums, jnp.minimum(comb, jnp.nextafter(sums[-1], 0)), side="right")
