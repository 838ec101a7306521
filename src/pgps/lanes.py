"""Runs on the device: several, with other keys, settings or log-densities, as one compiled program.

Step k draws its randomness from fold_in(key, k): a run does not depend on how it was cut into chunks, nor on the other
runs of the program.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Scalar

from pgps.density import Problem
from pgps.methods.base import AbstractMethod, Row, State
from pgps.noise import fold_in
from pgps.programs import compiler_options
from pgps.result import Status
from pgps.settings import corresponding_leaves
from pgps.spread import Spread

MOST_STEPS = 64
"""Steps per compiled call, at most."""

Observe = Callable[[PyTree], dict[str, Scalar]]
"""Measures something on all particles (a leading axis over them); compiled, and put into the trace at every step."""


class Run(eqx.Module):
    """A run on the device: the last good state, and what went wrong after it, if anything did."""

    state: State
    status: Int[Array, ""]
    fault_t: Scalar
    num_faults: Int[Array, ""]
    first_fault: Int[Array, ""]


class Lanes(eqx.Module):
    """Independent runs in one program: a key for each, and a method and a problem for each or for all."""

    shared: tuple[AbstractMethod, Problem]
    own: tuple[PyTree, PyTree]
    """The same two, with the arrays that each run has for itself stacked along a leading axis, and None elsewhere."""
    keys: Array
    at_once: int = eqx.field(static=True)
    """How many runs are vectorised; one by one they take the least memory."""

    @classmethod
    def of(
        cls, methods: Sequence[AbstractMethod], problems: Sequence[Problem], keys: Array, at_once: int = 1
    ) -> "Lanes":
        """One method and one problem for all keys, or one per key; those of a list must be `alike`."""
        return cls((methods[0], problems[0]), (_differences(methods), _differences(problems)), keys, at_once)

    def map(self, function: Callable[[AbstractMethod, Problem, Array, PyTree], PyTree], runs: PyTree = None) -> PyTree:
        """Apply `function(method, problem, key, run)` to the runs, in one compiled loop over `at_once` of them."""

        def one(lane: tuple[PyTree, Array, PyTree]) -> PyTree:
            own, key, run = lane
            return function(*eqx.combine(own, self.shared), key, run)

        lanes = (self.own, self.keys, runs)
        if len(self.keys) == 1:
            # No loop: XLA would compile copies of every array into it and out of it.
            only = one(jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), lanes))
            return jax.tree.map(lambda leaf: leaf.reshape(1, *leaf.shape), only)
        return jax.lax.map(one, lanes, batch_size=self.at_once if self.at_once > 1 else None)


def alike(members: Sequence[PyTree]) -> bool:
    """Whether pytrees differ in the values of their arrays alone, so that one program can serve all."""
    found = corresponding_leaves(members)
    return found is not None and all(map(_can_stack, found[0]))


def _can_stack(leaves: Sequence[Any]) -> bool:
    """Whether leaves are all equal, or arrays of one shape and dtype."""
    if all(map(eqx.is_array, leaves)):
        return len({(leaf.shape, leaf.dtype) for leaf in leaves}) == 1
    return all(leaf is leaves[0] or (type(leaf) is type(leaves[0]) and leaf == leaves[0]) for leaf in leaves)


def _differences(members: Sequence[PyTree]) -> PyTree:
    """The arrays that pytrees have each for itself, stacked, and None for those that all share, and for the rest."""
    found = corresponding_leaves(members)
    assert found is not None
    groups, treedef = found

    def own(group: Sequence[Any]) -> Array | None:
        is_shared = all(leaf is group[0] for leaf in group)
        return None if is_shared or not eqx.is_array(group[0]) else jnp.stack(group)

    return jax.tree.unflatten(treedef, map(own, groups))


@eqx.filter_jit
def begin_runs(lanes: Lanes, num_particles: int, limit: Int[Array, ""]) -> Run:
    """Each run's first state."""

    def begin(method: AbstractMethod, problem: Problem, key: Array, _: None) -> Run:
        state = placed(method.init(key, problem, num_particles), problem.spread)
        state = without_weak_types(state)
        nothing = jnp.asarray(0)
        run = Run(state, jnp.asarray(int(Status.RUNNING)), state.clock.t, nothing, nothing)
        return _judge(run, run, method, limit)

    return lanes.map(begin)


def advance_runs(
    lanes: Lanes, limit: Int[Array, ""], observe: Observe | None, runs: Run, num_steps: Int[Array, ""]
) -> tuple[Run, Row, Int[Array, " lanes"]]:
    """Take up to `num_steps` steps of each run; returns the runs, their rows and how many of these are filled."""

    # Compiled on its own so that it is traced once, for the rows' shapes and for the loop.
    @eqx.filter_jit
    def step(method: AbstractMethod, problem: Problem, key: Array, state: State) -> tuple[State, Row]:
        state, row = method.step(fold_in(key, state.num_steps), state, problem)
        state = placed(state, problem.spread)
        row |= {"evaluations": state.evaluations.total}
        if observe is not None:
            row |= observe(jax.vmap(problem.structure.unravel)(state.population.particles))
        return state, jax.tree.map(jnp.asarray, row)

    def unfinished(carry: tuple) -> Array:
        run, _, count = carry
        return (run.status == Status.RUNNING) & (count < num_steps)

    def advance_one(method: AbstractMethod, problem: Problem, key: Array, run: Run) -> tuple[Run, Row, Int[Array, ""]]:
        def advance(carry: tuple) -> tuple:
            run, rows, count = carry
            state, row = step(method, problem, key, run.state)
            judged = _judge(run, eqx.tree_at(lambda run: run.state, run, state), method, limit)
            rows = jax.tree.map(
                lambda buffer, value: jax.lax.dynamic_update_index_in_dim(buffer, value, count, 0), rows, row
            )
            return judged, rows, count + (judged.num_faults == 0)

        shapes = eqx.filter_eval_shape(step, method, problem, key, run.state)[1]
        rows = jax.tree.map(lambda leaf: jnp.zeros((MOST_STEPS, *leaf.shape), leaf.dtype), shapes)
        return jax.lax.while_loop(unfinished, advance, (run, rows, jnp.asarray(0)))

    return lanes.map(advance_one, runs)


@cache
def compiled_advance_runs() -> Callable[..., tuple[Run, Row, Int[Array, " lanes"]]]:
    """`advance_runs` as a program, made when JAX is in use and knows what it compiles for.

    The function itself serves where shapes are asked for: JAX has no compiler options inside of other programs.
    """
    options = compiler_options()
    # Equinox passes options on to JAX, but its overloads do not tell.
    return eqx.filter_jit(advance_runs, compiler_options=options)  # pyright: ignore[reportCallIssue]


def without_weak_types(state: State) -> State:
    """The same state in types that steps give back: others would have the program of a step compiled twice."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def placed(state: State, spread: Spread) -> State:
    """The state with its particles divided over the devices, and the rest on each of them."""
    population = spread.divided(state.population)
    return eqx.tree_at(lambda state: state.population, spread.shared(state), population)


def _judge(last: Run, run: Run, method: AbstractMethod, limit: Int[Array, ""]) -> Run:
    """Set the status of a run after a step; if the step failed, go back to the state before it."""
    population, clock = run.state.population, run.state.clock
    lost, faulty = population.lost, population.faulty & ~population.lost
    all_outside = ~jnp.any(population.alive | lost | faulty)
    bad = lost | faulty | all_outside
    ends = {
        Status.NONFINITE_PARTICLES: jnp.any(lost),
        Status.NONFINITE_DENSITY: jnp.any(faulty),
        Status.OUTSIDE_SUPPORT: all_outside,
        Status.COMPLETED: clock.t >= 1,
        Status.EVALUATION_LIMIT: run.state.evaluations.total >= limit,
        Status.STEP_LIMIT: run.state.num_steps >= method.step_limit,
    }
    codes = [jnp.asarray(int(code)) for code in ends]
    status = jnp.select(list(ends.values()), codes, int(Status.RUNNING))
    state = jax.lax.cond(jnp.any(bad), lambda: last.state, lambda: run.state)
    # The evaluations of a failed step were made all the same.
    state = eqx.tree_at(lambda state: state.evaluations, state, run.state.evaluations)
    # A field that has turned nan takes t along: then the fault lies where the step began.
    fault_t = jnp.where(jnp.isfinite(clock.t), clock.t, last.state.clock.t)
    judged = Run(state, status, fault_t, jnp.sum(bad), jnp.argmax(bad))
    # Weak types become strong, as they are in a file: a change of them from call to call means another compilation.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), judged)
