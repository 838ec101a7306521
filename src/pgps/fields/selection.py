"""Several families of fields, of which the one that does best on held-out particles is used at each step."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Scalar

from pgps import _checks
from pgps.fields.base import AbstractField
from pgps.fields.linear import AbstractLinearField


class Chosen(NamedTuple):
    """The parameters of every family that suits the dimension, and the number of the one in use."""

    params: tuple[PyTree, ...]
    choice: Int[Array, ""]


class Selection(AbstractField):
    """One of several linear families; `trainers.LeastSquares` chooses.

    Args:
        families: The families to choose from.
        reserves: Further ones, dear to fit, that are tried only where each of the others would waste many particles; a
            winner among them is challenged like any other.
    """

    families: tuple[AbstractLinearField, ...] = eqx.field(converter=tuple)
    reserves: tuple[AbstractLinearField, ...] = eqx.field(converter=tuple, default=())

    def __check_init__(self):
        if not self.families:
            raise ValueError("families must hold at least one field, got none; as in (fields.Affine(), fields.Local())")
        for name in ("families", "reserves"):
            for family in getattr(self, name):
                known = "pgps.fields.Affine, Additive, Local, Quadratic or Kernel"
                _checks.instance(name, family, AbstractLinearField, known)

    def init(self, key: Array, dim: int, dtype: Any) -> Chosen:
        """Fresh parameters of every family in use."""
        families = self.suited(dim)
        keys = jax.random.split(key, len(families))
        params = tuple(family.init(key, dim, dtype) for key, family in zip(keys, families, strict=True))
        return Chosen(params, jnp.asarray(0))

    def suited(self, dim: int) -> tuple[AbstractLinearField, ...]:
        """The families that suit the dimension, then the reserves that do."""
        return (*self.regular(dim), *(family for family in self.reserves if family.suits(dim)))

    def regular(self, dim: int) -> tuple[AbstractLinearField, ...]:
        """The families that suit the dimension, or all of them if none does."""
        return tuple(family for family in self.families if family.suits(dim)) or self.families

    def apply(self, params: Chosen, t: Scalar, x: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """phi(x) of the family in use."""
        return self._switch(params, "apply", t, x)

    def apply_and_divergence(
        self, params: Chosen, t: Scalar, x: Float[Array, " dim"], key: Array
    ) -> tuple[Float[Array, " dim"], Scalar]:
        """phi(x) and its divergence, of the family in use."""
        return self._switch(params, "apply_and_divergence", t, x, key)

    def log_det(self, params: Chosen, t: Scalar, x: Float[Array, " dim"], dt: Scalar) -> Scalar:
        """ln |det(I + dt grad phi(x))| of the family in use."""
        return self._switch(params, "log_det", t, x, dt)

    def stretch(self, params: Chosen, t: Scalar, x: Float[Array, " dim"]) -> Scalar:
        """A bound on the norm of grad phi(x), of the family in use."""
        return self._switch(params, "stretch", t, x)

    def flows(
        self, params: Chosen, t: Scalar, particles: Float[Array, "n dim"], key: Array
    ) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """phi(x) and its divergence at many particles."""
        return self._switch(params, "flows", t, particles, key)

    def log_dets(self, params: Chosen, t: Scalar, particles: Float[Array, "n dim"], dt: Scalar) -> Float[Array, " n"]:
        """ln |det(I + dt grad phi(x))| at many particles."""
        return self._switch(params, "log_dets", t, particles, dt)

    def stretches(self, params: Chosen, t: Scalar, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
        """A bound on the norm of grad phi(x) at many particles."""
        return self._switch(params, "stretches", t, particles)

    def _switch(self, params: Chosen, method: str, t: Scalar, x: Array, *others: Any) -> Any:
        branches = [
            lambda family=family, own=own: getattr(family, method)(own, t, x, *others)
            for family, own in zip(self.suited(x.shape[-1]), params.params, strict=True)
        ]
        return jax.lax.switch(params.choice, branches)
