"""The interface of a trainer."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps.density import Population
from pgps.fields.base import AbstractField


class Training(NamedTuple):
    """What a fit came to: the loss at its end, the training steps it took, and whether they were enough.

    `r2` is the share of the variance of d/dt ln p_t that the field takes away on held-out particles; nan if none were.
    """

    loss: Scalar
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]
    r2: Scalar | float = float("nan")

    def joined(self) -> "Training":
        """Several fits, along a leading axis, as one: mean losses and R^2, all steps."""
        loss, r2 = jnp.mean(self.loss), jnp.mean(self.r2)
        return Training(loss, jnp.sum(self.num_steps), jnp.all(self.converged), r2)


class AbstractTrainer(eqx.Module):
    """Fits a field's parameters to a population at one t; `memory` is what it carries from one t to the next."""

    def check(self, field: AbstractField) -> None:
        """Raise if it cannot fit such a field; a hook that lets any pass."""

    @abc.abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """The memory before the first fit."""

    @abc.abstractmethod
    def fit(
        self,
        key: Array,
        t: Scalar,
        population: Population,
        field: AbstractField,
        params: PyTree,
        memory: PyTree,
        log_weights: Float[Array, " n"] | None = None,
    ) -> tuple[PyTree, PyTree, Training]:
        """Fit, starting from `params`; returns parameters, memory and how it went.

        A fit that pays no heed to the weights gives another field, but no wrong one: weights are exact for any.
        """
