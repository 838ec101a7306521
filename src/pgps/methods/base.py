"""The interface of a sampler: `init` and `step`, pure functions of (key, state)."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from pgps.density import Evaluations, Population, Problem, evaluate_target
from pgps.noise import fold_in
from pgps.steppers.base import Clock
from pgps.weights import Weights

Row = dict[str, PyTree]
"""What one step adds to the trace, by name: scalars, and under `TRANSPORT` what is needed to repeat the step."""

TRANSPORT = "transport"

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
    weights: Weights | None = None
    """The particles' weights and the evidence so far, for a method that has exact ones."""


class AbstractMethod(eqx.Module):
    """A sampler. It runs until the clock shows t = 1, or until `step_limit` steps are done."""

    @property
    @abc.abstractmethod
    def step_limit(self) -> int:
        """The largest number of steps."""

    def num_evaluated(self, num_particles: int) -> int:
        """How many calls one count of `State.evaluations` stands for: one per particle, unless a method differs."""
        return num_particles

    @abc.abstractmethod
    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """The state at t = 0."""

    @abc.abstractmethod
    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One step, and its row of the trace."""

    @abc.abstractmethod
    def doubts(self, trace: Trace) -> list[str]:
        """What in a run's trace should make its user wary, one sentence each."""


def estimation_key(key: Array) -> Array:
    """The key by which a step, or a beginning, estimates a stochastic target."""
    # Far from the numbers that steps fold in themselves.
    return fold_in(key, 2**31)


def begin_on_target(
    key: Array, problem: Problem, num_particles: int, memory: PyTree = None, *, stochastic: bool = False
) -> State:
    """The first state of a method that follows no path: particles of the initial law, evaluated at the target.

    `stochastic` says whether the method can do with estimates of the target.
    """
    key_estimate = estimation_key(key) if stochastic else None
    return State(
        population=evaluate_target(problem.draw(key, num_particles), problem, key_estimate),
        clock=Clock.start(problem.structure.dtype),
        num_steps=jnp.asarray(0),
        evaluations=Evaluations(gradients=1),
        memory=memory,
    )


def proceed(state: State, population: Population, of_steps: Int[Array, ""] | int, memory: PyTree = None) -> State:
    """The state after one more step, which cost one gradient call; t is the share of the steps that are done."""
    num_steps = state.num_steps + 1
    t = (num_steps / of_steps).astype(state.clock.t.dtype)
    return State(
        population=population,
        clock=eqx.tree_at(lambda clock: clock.t, state.clock, t),
        num_steps=num_steps,
        evaluations=state.evaluations + Evaluations(gradients=1),
        memory=memory,
    )
