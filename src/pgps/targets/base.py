"""The interfaces of targets: those whose truth is known, and posteriors of real data.

A target is called for its log-density at one flat vector and knows what a sampler has to find: exact independent draws
and ln Z, the log of the integral of exp(log-density). Its parameters are arrays, so new ones need no new compilation
and a stack of targets, `jax.tree.map(lambda *leaves: jnp.stack(leaves), *targets)`, can be mapped over by `jax.vmap`.

A posterior has no exact sampler. It is called for ln p(data, x), prior included, so that ln Z = ln p(data), of which
the literature's estimate may be known.
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


class AbstractPosterior(eqx.Module):
    """The log of prior times likelihood, both as normalised as the literature has them, at one flat vector."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The number of coordinates."""

    @property
    @abc.abstractmethod
    def reference_log_evidence(self) -> float | None:
        """ln p(data) as the literature estimates it; None where it does not."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " dim"]) -> Scalar:
        """ln p(data, x) at one vector."""


def as_floats(value: Any) -> Float[Array, "..."]:
    """A parameter as an array of the default floating dtype, so that equal shapes are equal to the compiler."""
    return jnp.asarray(value, float)


def is_traced(tree: PyTree) -> bool:
    """Whether values are unknown as yet, as they are within a transformation: then there is nothing to check."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
