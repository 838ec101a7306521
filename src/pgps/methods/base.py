"""The interface of a sampler: `init` and `step`, pure functions of (key, state)."""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from pgps.density import Evaluations, Population, Problem
from pgps.steppers.base import Clock

Row = dict[str, Scalar]
"""What one step adds to the trace, by name."""

Trace = dict[str, np.ndarray]
"""A run's rows put together: for each name, an array with one entry per step."""


class State(eqx.Module):
    """A sampler between two steps."""

    population: Population
    clock: Clock
    num_steps: Int[Array, ""]
    evaluations: Evaluations
    memory: PyTree
    """What the method itself carries along: field parameters, an optimiser's moments."""


class AbstractMethod(eqx.Module):
    """A sampler. It runs until the clock shows t = 1, or until `step_limit` steps are done."""

    @property
    @abc.abstractmethod
    def step_limit(self) -> int:
        """The largest number of steps."""

    @abc.abstractmethod
    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """The state at t = 0."""

    @abc.abstractmethod
    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One step, and its row of the trace."""

    @abc.abstractmethod
    def doubts(self, trace: Trace) -> list[str]:
        """What in a run's trace should make its user wary, one sentence each."""
