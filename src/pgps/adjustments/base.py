"""The interface of an adjustment."""

import abc
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Int, Scalar

from pgps.density import Evaluations, Population, Problem
from pgps.paths.base import AbstractPath


class Adjustment(NamedTuple):
    """What an adjustment did: the moves per particle and the evaluations that they cost."""

    num_steps: Int[Array, ""]
    evaluations: Evaluations


class AbstractAdjustment(eqx.Module):
    """Moves the particles at a fixed t with a kernel that has p_t, or nearly so, as its stationary law."""

    @abc.abstractmethod
    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, path: AbstractPath, problem: Problem
    ) -> tuple[Population, Adjustment]:
        """Move the population, which is evaluated at t; `before` is the time that the step came from."""
