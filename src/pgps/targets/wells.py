"""Many independent double wells: as many marginals whose two modes have unequal masses.

    ln p(x, v) = sum_j [-x_j^4 + 6 x_j^2 + x_j / 2 - v_j^2 / 2] + constant,

laid out in pairs, (x_1, v_1, x_2, v_2, ...). Each x_j has a well near -1.7 and a deeper one near 1.75; v_j is standard
normal. Source: Midgley et al., "Flow annealed importance sampling bootstrap" (2023), after Noe et al., "Boltzmann
generators" (2019).
"""

import functools
import math
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

from pgps import _checks
from pgps.initial import Normal
from pgps.targets.base import AbstractTarget

Values = TypeVar("Values", np.ndarray, Array)


def _log_well(x: Values) -> Values:
    """The unnormalised log-density of one x_j."""
    return -(x**4) + 6 * x**2 + 0.5 * x


class _Table(NamedTuple):
    """The law of one x_j on a grid: its distribution function, and the log of its normalising constant."""

    x: np.ndarray
    cdf: np.ndarray
    log_norm: float


@functools.cache
def _table() -> _Table:
    # All but 1e-35 lies within 3.5. Trapezoids give the whole integral to rounding, the interpolated CDF to 1e-6.
    x = np.linspace(-3.5, 3.5, 2**14 + 1)
    density = np.exp(_log_well(x))
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(x))])
    return _Table(x, mass / mass[-1], math.log(mass[-1]))


class ManyWell(AbstractTarget):
    """Independent double wells in 2 * num_wells coordinates; call it for its log-density, which is not normalised.

    Args:
        num_wells: The number of pairs (x_j, v_j).
    """

    num_wells: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        _checks.whole("num_wells", self.num_wells, at_least=1)

    @property
    def dim(self) -> int:
        """Two coordinates per well."""
        return 2 * self.num_wells

    @property
    def log_evidence(self) -> float:
        """ln Z, by quadrature in one dimension."""
        return self.num_wells * (_table().log_norm + 0.5 * math.log(2 * math.pi))

    @property
    def minor_mass(self) -> float:
        """P(x_j < 0), the mass of the shallower well, which is the same in every pair."""
        table = _table()
        return float(np.interp(0.0, table.x, table.cdf))

    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The log-density, without its normalising constant."""
        wells, normals = x[0::2], x[1::2]
        return jnp.sum(_log_well(wells)) - 0.5 * jnp.sum(normals**2)

    def sample(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws: each x_j inverts its distribution function, with an error in probability below 1e-6."""
        key_well, key_normal = jax.random.split(key)
        table = _table()
        uniform = jax.random.uniform(key_well, (num, self.num_wells))
        # Shifted to the middle between neighbouring floats: 0 would be drawn, and mapped to the table's far end.
        uniform = uniform + 0.5 * jnp.finfo(uniform.dtype).eps
        wells = jnp.interp(uniform, jnp.asarray(table.cdf, float), jnp.asarray(table.x, float))
        normals = jax.random.normal(key_normal, (num, self.num_wells))
        return jnp.stack([wells, normals], axis=-1).reshape(num, self.dim)


def many_well(num_wells: int = 16) -> tuple[ManyWell, Normal]:
    """Double wells from N(0, I), which is right for v_j and has both wells of x_j within 1.8 standard deviations."""
    return ManyWell(num_wells), Normal(shape=(2 * num_wells,))
