"""The interface of a target whose truth is known.

A target is called for its log-density at one flat vector and knows what a sampler has to find: exact independent draws
and ln Z, the log of the integral of exp(log-density). Its parameters are arrays, so new ones need no new compilation
and a stack of targets, `jax.tree.map(lambda *leaves: jnp.stack(leaves), *targets)`, can be mapped over by `jax.vmap`.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree, Scalar


class AbstractTarget(eqx.Module):
    """A log-density with its exact sampler and its log evidence."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The number of coordinates."""

    @property
    @abc.abstractmethod
    def log_evidence(self) -> float:
        """ln Z, the log of the integral of exp(log-density); 0 if the density is normalised."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """The log-density at one vector."""

    @abc.abstractmethod
    def sample(self, key: Array, num: int) -> Float[Array, "num dim"]:
        """Independent draws."""


def as_floats(value: Any) -> Float[Array, "..."]:
    """A parameter as an array of the default floating dtype, so that equal shapes are equal to the compiler."""
    return jnp.asarray(value, float)


def is_traced(tree: PyTree) -> bool:
    """Whether values are unknown as yet, as they are within a transformation: then there is nothing to check."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
