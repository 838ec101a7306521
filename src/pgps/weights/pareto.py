"""The shape of a generalised Pareto law that is fitted to the largest importance weights.

Weights with shape k have finite moments of order below 1/k. Estimates that rest on them are reliable for k < 0.7
(Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed importance sampling", 2024). The M = min(N/5, 3 sqrt(N))
largest weights, less the next one, are x_1 <= ... <= x_M. Zhang and Stephens (2009): with candidates, for
j = 1, ..., m = 30 + sqrt(M),

    theta_j = 1 / x_M + (1 - sqrt(m / (j - 1/2))) / (3 x_[M/4 + 1/2]),
    k(theta) = mean_i ln(1 - theta x_i),    l(theta) = M (ln(-theta / k(theta)) - k(theta) - 1),

theta is the mean of the candidates under weights proportional to exp l, and k = k(theta), which ten observations of
k = 1/2 are added to: (M k + 10 / 2) / (M + 10).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Scalar

from pgps.quantiles import ascending

# A fit to fewer weights says nothing.
LEAST_TAIL = 5
# Largest weights that differ by less, as equal ones do by rounding, have no tail.
LEAST_SPREAD = 0.01
LARGEST_K = 0.7
"""Above it, estimates hang on a few weights."""


def pareto_k(log_weights: Float[Array, " n"]) -> Scalar:
    """k of the largest weights: below 0.7 there is no cause for alarm.

    It is -inf where the largest weights are equal to one percent: they have no tail. It is inf where fewer than five
    weights stand out, as with twenty particles or one that has all the weight, and where none can be compared.

    Args:
        log_weights: Logarithms of the weights up to a constant, -inf for a weight of 0.
    """
    num = log_weights.shape[0]
    num_tail = math.ceil(min(num / 5, 3 * math.sqrt(num)))
    if num <= num_tail:  # one particle
        return jnp.asarray(jnp.inf, log_weights.dtype)
    largest = ascending(log_weights)[: -num_tail - 2 : -1]
    tail, cutoff, top = largest[:-1], largest[-1], largest[0]
    spread = top - cutoff
    # Excesses in units of the largest, exp(l_i) - exp(cutoff) as a product: small ones keep their digits.
    above = tail > cutoff
    safe = jnp.where(above, tail, top)
    scaled = jnp.exp(safe - top) * jnp.expm1(cutoff - safe) / jnp.expm1(-spread)
    excesses = jnp.where(above, scaled, 0.0)
    positive = excesses > 0
    size = jnp.sum(positive)
    k = jnp.where(size < LEAST_TAIL, jnp.inf, _fitted_shape(excesses, positive, size))
    return jnp.where(spread < LEAST_SPREAD, -jnp.inf, jnp.where(jnp.isnan(k), jnp.inf, k))


def _fitted_shape(x: Float[Array, " m"], positive: Bool[Array, " m"], size: Int[Array, ""]) -> Scalar:
    """k from excesses in falling order, of which the first is 1 and `size` are positive."""
    num_candidates = 30 + math.isqrt(x.shape[0])
    # The quartile from below is counted from the end of the positive ones.
    quartile = x[size - jnp.floor(size / 4 + 0.5).astype(int)]
    steps = 1 - jnp.sqrt(num_candidates / (jnp.arange(num_candidates) + 0.5))
    thetas = (1 + steps / (3 * jnp.maximum(quartile, 1e-30))).astype(x.dtype)

    def shape(theta: Scalar) -> Scalar:
        return jnp.sum(jnp.where(positive, jnp.log1p(-theta * x), 0.0)) / size

    shapes = jax.vmap(shape)(thetas)
    # At theta = 0, an exponential law, -theta / k is 1 / mean(x).
    near_zero = jnp.abs(thetas) < 1e-6
    slopes = jnp.where(near_zero, size / jnp.sum(x), -thetas / jnp.where(near_zero, 1.0, shapes))
    log_likelihoods = size * (jnp.log(slopes) - shapes - 1)
    k = shape(jnp.sum(jax.nn.softmax(log_likelihoods) * thetas))
    return (size * k + 5) / (size + 10)
