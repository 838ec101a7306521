"""The residual of a field (Eq. 4) and the losses that make it vanish (Eq. 6), each written once.

A loss is a function of the field's values and divergences at the particles, and of the population there.

    r(x) = d/dt ln p_t(x) + score_t(x) . phi(x) + div phi(x)
    mean_square (the paper's):  mean_i (r(x_i) - mean_j d/dt ln p_t(x_j))^2
    variance:                   mean_i (r(x_i) - mean_j r(x_j))^2

Both have the same minimiser under p_t, where E[score . phi + div phi] = 0; the variance has less noise. A particle
outside the support has no residual and is left out. The paper writes a sum where its code, and this one, has a mean.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps.density import Population

Loss = Callable[[Float[Array, "n dim"], Float[Array, " n"], Population], Scalar]
"""Takes the field's values, its divergences and the population."""


def residual(
    velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population
) -> Float[Array, " n"]:
    """r(x_i), given the field's values and divergences at the particles (Eq. 4)."""
    # An infinite derivative outside the support would turn the gradient of any loss into nan, even if left out of it.
    time_derivative = jnp.where(population.usable, population.time_derivative, 0.0)
    return time_derivative + jnp.sum(population.score * velocity, axis=-1) + divergence


def mean_square(velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population) -> Scalar:
    """The paper's loss (Eq. 6)."""
    # Centred before the field comes in: the rest is one sum per particle, which XLA keeps. A difference at the end it
    # would work out anew for every hidden unit.
    centred = population.time_derivative - _mean(population.time_derivative, population)
    population = dataclasses.replace(population, time_derivative=centred)
    return _mean_of_squares(residual(velocity, divergence, population), population)


def variance(velocity: Float[Array, "n dim"], divergence: Float[Array, " n"], population: Population) -> Scalar:
    """The variance of the residual."""
    residuals = residual(velocity, divergence, population)
    return _mean_of_squares(residuals - _mean(residuals, population), population)


def _mean(values: Float[Array, " n"], population: Population) -> Scalar:
    return jnp.sum(jnp.where(population.usable, values, 0.0)) / _num_usable(population)


def _mean_of_squares(values: Float[Array, " n"], population: Population) -> Scalar:
    return jnp.sum(jnp.where(population.usable, values, 0.0) ** 2) / _num_usable(population)


def _num_usable(population: Population) -> Int[Array, ""]:
    return jnp.maximum(jnp.sum(population.usable), 1)
