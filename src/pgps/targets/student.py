"""Mixtures of multivariate t components, whose tails are heavy.

    f(|z|^2) = Gamma((nu + d) / 2) / (Gamma(nu / 2) (nu pi)^(d/2)) (1 + |z|^2 / nu)^(-(nu + d) / 2)

is the standard component with nu degrees of freedom: z = g sqrt(nu / c), where g is Gaussian and c chi-squared with nu
degrees of freedom. Second moments exist for nu > 2 only. The problem is after Blessing et al., "Beyond ELBOs" (2024),
whose components have independent t coordinates; these are round.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import as_floats, is_traced
from pgps.targets.mixtures import AbstractMixture, scattered


class StudentMixture(AbstractMixture):
    """A mixture of multivariate t distributions; call it for its log-density.

    Args:
        weights: The components' weights, which sum to 1.
        means: The components' centres, which are their means where these exist.
        scales: The components' widths.
        df: The degrees of freedom, one number for all components.
    """

    weights: Float[Array, " k"] = eqx.field(converter=as_floats)
    means: Float[Array, "k dim"] = eqx.field(converter=as_floats)
    scales: Float[Array, " k"] = eqx.field(converter=as_floats)
    df: Scalar = eqx.field(converter=as_floats)

    def __check_init__(self):
        if not is_traced(self.df):
            _checks.positive("df", self.df)

    def _log_standard(self, squares: Float[Array, " k"]) -> Float[Array, " k"]:
        power = 0.5 * (self.df + self.dim)
        log_norm = gammaln(power) - gammaln(0.5 * self.df) - 0.5 * self.dim * jnp.log(math.pi * self.df)
        return log_norm - power * jnp.log1p(squares / self.df)

    def _draw_standard(self, key: Array, num: int) -> Float[Array, "num dim"]:
        key_normal, key_width = jax.random.split(key)
        normal = jax.random.normal(key_normal, (num, self.dim), self.means.dtype)
        return normal * jnp.sqrt(self.df / jax.random.chisquare(key_width, self.df, (num, 1), self.means.dtype))


def student_t_mixture(dim: int = 2) -> tuple[StudentMixture, Normal]:
    """Ten equal components, 2 degrees of freedom, width 1, centres uniform on [-10, 10]^dim, from N(0, 10^2 I)."""
    target = StudentMixture(jnp.full(10, 0.1), scattered(10, dim, 10.0), jnp.ones(10), 2.0)
    return target, Normal(0.0, 10.0, shape=(dim,))
