"""Mixtures of isotropic Gaussians, among them the paper's: normalised, so that their log evidence is 0."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps.initial import Normal


class GaussianMixture(eqx.Module):
    """A mixture of isotropic Gaussians; call it for its log-density.

    Args:
        weights: The components' weights, which sum to 1.
        means: The components' means.
        scales: The components' standard deviations.
    """

    weights: Float[Array, " k"]
    means: Float[Array, "k dim"]
    scales: Float[Array, " k"]

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The normalised log-density, by log-sum-exp."""
        squares = jnp.sum((x - self.means) ** 2, axis=-1) / self.scales**2
        log_norm = x.size * (jnp.log(self.scales) + 0.5 * math.log(2 * math.pi))
        return jax.nn.logsumexp(-0.5 * squares - log_norm, b=self.weights)

    def sample(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws."""
        key_mode, key_noise = jax.random.split(key)
        mode = jax.random.choice(key_mode, len(self.weights), (num,), p=self.weights)
        noise = jax.random.normal(key_noise, (num, self.means.shape[1]), self.means.dtype)
        return self.means[mode] + self.scales[mode, None] * noise

    def nearest_mode(self, x: Float[Array, "n dim"]) -> Int[Array, " n"]:
        """The index of the component whose mean is nearest to each particle."""
        return jnp.argmin(jnp.linalg.norm(x[:, None, :] - self.means, axis=-1), axis=1)


def two_modes() -> tuple[GaussianMixture, Normal]:
    """Figure 1: equal modes at (1, 0) and (1.5, 0), standard deviation 0.05, from N(0, 0.1 I)."""
    target = GaussianMixture(jnp.full(2, 0.5), jnp.array([[1.0, 0.0], [1.5, 0.0]]), jnp.full(2, 0.05))
    return target, Normal(0.0, math.sqrt(0.1), shape=(2,))


def mode_discovery() -> tuple[GaussianMixture, Normal]:
    """Figure 3 (a, b): equal modes at 0 and 8, standard deviation 1, from N(0, 3^2)."""
    target = GaussianMixture(jnp.full(2, 0.5), jnp.array([[0.0], [8.0]]), jnp.ones(2))
    return target, Normal(0.0, 3.0, shape=(1,))
