"""The interface of a trainer."""

import abc
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from pgps.density import Population
from pgps.fields.base import AbstractField


class Training(NamedTuple):
    """What a fit came to: the loss at its end, the training steps it took, and whether they were enough."""

    loss: Scalar
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


class AbstractTrainer(eqx.Module):
    """Fits a field's parameters to a population at one t; `memory` is what it carries from one t to the next."""

    @abc.abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """The memory before the first fit."""

    @abc.abstractmethod
    def fit(
        self, key: Array, t: Scalar, population: Population, field: AbstractField, params: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Training]:
        """Fit, starting from `params`; returns parameters, memory and how it went."""
