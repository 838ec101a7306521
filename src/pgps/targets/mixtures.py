"""Mixtures of round components, and the Gaussian ones among them.

    p(x) = sum_k w_k s_k^-d f(|x - m_k|^2 / s_k^2),

where f(|z|^2) is the density of a standard component; that of a Gaussian is (2 pi)^(-d/2) exp(-|z|^2 / 2). Mixtures are
normalised, so that their log evidence is 0. The problems are the paper's (Figures 1, 3 and 4), the nine modes of Zhang
and Chen, "Path integral sampler" (2022), and the forty of Midgley et al., "Flow annealed importance sampling bootstrap"
(2023), with the scale of Blessing et al., "Beyond ELBOs" (2024).
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import AbstractTarget, as_floats, is_traced


class AbstractMixture(AbstractTarget):
    """Components of one round shape, each with a weight (its mass), a mean and a scale."""

    weights: eqx.AbstractVar[Float[Array, " k"]]
    means: eqx.AbstractVar[Float[Array, "k dim"]]
    scales: eqx.AbstractVar[Float[Array, " k"]]

    def __check_init__(self):
        shapes = self.weights.shape, self.means.shape, self.scales.shape
        if not shapes[0] == shapes[1][:-1] == shapes[2] != ():
            raise ValueError(
                f"weights, means and scales must have shapes (k,), (k, dim) and (k,), got {shapes[0]}, {shapes[1]} and "
                f"{shapes[2]}; give each component one weight, one mean vector and one scale"
            )
        if is_traced(self):
            return
        weights, scales = np.asarray(self.weights), np.asarray(self.scales)
        if not (np.all(weights >= 0) and np.allclose(weights.sum(axis=-1), 1, atol=1e-4)):
            raise ValueError(f"weights must be shares that sum to 1, got {_checks.show(weights)}; divide by their sum")
        if not np.all(scales > 0):
            raise ValueError(f"scales must be positive, got {_checks.show(scales)}; pass widths above 0")

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.means.shape[-1]

    @property
    def log_evidence(self) -> float:
        """0: a mixture is normalised."""
        return 0.0

    @abc.abstractmethod
    def _log_standard(self, squares: Float[Array, " k"]) -> Float[Array, " k"]:
        """ln f(|z|^2), the log-density of a standard component."""

    @abc.abstractmethod
    def _draw_standard(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws of a standard component."""

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The normalised log-density, by log-sum-exp."""
        squares = jnp.sum((x - self.means) ** 2, axis=-1) / self.scales**2
        components = self._log_standard(squares) - self.dim * jnp.log(self.scales)
        return jax.nn.logsumexp(components, b=self.weights)

    def sample(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws."""
        key_mode, key_noise = jax.random.split(key)
        mode = jax.random.choice(key_mode, len(self.weights), (num,), p=self.weights)
        return self.means[mode] + self.scales[mode, None] * self._draw_standard(key_noise, num)

    def nearest_mode(self, x: Float[Array, "n dim"]) -> Int[Array, " n"]:
        """The index of the component whose mean is nearest to each particle."""
        return jnp.argmin(jnp.linalg.norm(x[:, None, :] - self.means, axis=-1), axis=1)


class GaussianMixture(AbstractMixture):
    """A mixture of isotropic Gaussians; call it for its log-density.

    Args:
        weights: The components' weights, which sum to 1.
        means: The components' means.
        scales: The components' standard deviations.
    """

    weights: Float[Array, " k"] = eqx.field(converter=as_floats)
    means: Float[Array, "k dim"] = eqx.field(converter=as_floats)
    scales: Float[Array, " k"] = eqx.field(converter=as_floats)

    def _log_standard(self, squares: Float[Array, " k"]) -> Float[Array, " k"]:
        return -0.5 * (squares + self.dim * math.log(2 * math.pi))

    def _draw_standard(self, key: Array, num: int) -> Float[Array, "num dim"]:
        return jax.random.normal(key, (num, self.dim), self.means.dtype)


def scattered(num: int, dim: int, reach: float) -> Float[Array, "num dim"]:
    """Vectors that are uniform on [-reach, reach]^dim, from a fixed key: the same ones in every precision."""
    draws = jax.random.uniform(jax.random.key(0), (num, dim), jnp.float32, -reach, reach)
    return draws.astype(float)


def two_modes() -> tuple[GaussianMixture, Normal]:
    """Figure 1: equal modes at (1, 0) and (1.5, 0), standard deviation 0.05, from N(0, 0.1 I)."""
    target = GaussianMixture(jnp.full(2, 0.5), jnp.array([[1.0, 0.0], [1.5, 0.0]]), jnp.full(2, 0.05))
    return target, Normal(0.0, math.sqrt(0.1), shape=(2,))


def mode_discovery() -> tuple[GaussianMixture, Normal]:
    """Figure 3 (a, b): equal modes at 0 and 8, standard deviation 1, from N(0, 3^2)."""
    target = GaussianMixture(jnp.full(2, 0.5), jnp.array([[0.0], [8.0]]), jnp.ones(2))
    return target, Normal(0.0, 3.0, shape=(1,))


def false_mode() -> tuple[GaussianMixture, Normal]:
    """Figure 3 (c, d): modes at -5 and 5 of weights 0.001 and 0.999, standard deviation 1, from N(0, 2^2)."""
    target = GaussianMixture(jnp.array([0.001, 0.999]), jnp.array([[-5.0], [5.0]]), jnp.ones(2))
    return target, Normal(0.0, 2.0, shape=(1,))


def weight_recovery(key: Array) -> tuple[GaussianMixture, Normal]:
    """Figure 4: modes at e1, -e2, e3, -e4 in 8-D, standard deviation 0.15, weights softmax(N(0, I)), from N(0, I)."""
    weights = jax.nn.softmax(jax.random.normal(key, (4,)))
    means = jnp.diag(jnp.array([1.0, -1.0, 1.0, -1.0])) @ jnp.eye(4, 8)
    return GaussianMixture(weights, means, jnp.full(4, 0.15)), Normal(shape=(8,))


def nine_gaussians() -> tuple[GaussianMixture, Normal]:
    """Equal modes on the grid {-5, 0, 5}^2, variance 0.3, from N(0, I)."""
    axis = jnp.array([-5.0, 0.0, 5.0])
    means = jnp.stack(jnp.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(9, 2)
    return GaussianMixture(jnp.full(9, 1 / 9), means, jnp.full(9, math.sqrt(0.3))), Normal(shape=(2,))


def forty_gaussians(dim: int = 2) -> tuple[GaussianMixture, Normal]:
    """Forty equal modes, means uniform on [-40, 40]^dim from a fixed key, standard deviation 1, from N(0, 25^2 I)."""
    target = GaussianMixture(jnp.full(40, 1 / 40), scattered(40, dim, 40.0), jnp.ones(40))
    return target, Normal(0.0, 25.0, shape=(dim,))
