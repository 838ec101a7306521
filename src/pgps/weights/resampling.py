"""Resampling: particles are copied in proportion to their weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def systematic(key: Array, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Indices of the chosen particles: one uniform number u sets the whole comb (i + u) / n.

    Particle i is chosen floor(n W_i) or ceil(n W_i) times, and n W_i times on average.
    """
    num = log_weights.shape[0]
    shares = jnp.cumsum(jnp.exp(log_weights - jax.nn.logsumexp(log_weights)))
    comb = (jnp.arange(num) + jax.random.uniform(key, (), shares.dtype)) / num
    # The sum may end a rounding below 1: scaled, so that the last tooth finds the last particle with weight.
    return jnp.searchsorted(shares / shares[-1], comb, side="right").clip(0, num - 1)
