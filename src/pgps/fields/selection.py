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
    """The parameters of every family, and the number of the one in use."""

    params: tuple[PyTree, ...]
    choice: Int[Array, ""]


class Selection(AbstractField):
    """One of several linear families; `trainers.LeastSquares` chooses.

    Args:
        families: The families to choose from.
    """

    families: tuple[AbstractLinearField, ...] = eqx.field(converter=tuple)

    def __check_init__(self):
        if not self.families:
            raise ValueError("families must hold at least one field, got none; as in (fields.Affine(), fields.Local())")
        for family in self.families:
            _checks.instance("families", family, AbstractLinearField, "pgps.fields.Affine, Additive, Local or Kernel")

    def init(self, key: Array, dim: int, dtype: Any) -> Chosen:
        """Fresh parameters of every family."""
        keys = jax.random.split(key, len(self.families))
        params = tuple(family.init(key, dim, dtype) for key, family in zip(keys, self.families, strict=True))
        return Chosen(params, jnp.asarray(0))

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

    def _switch(self, params: Chosen, method: str, *args: Any) -> Any:
        branches = [
            lambda family=family, own=own: getattr(family, method)(own, *args)
            for family, own in zip(self.families, params.params, strict=True)
        ]
        return jax.lax.switch(params.choice, branches)
