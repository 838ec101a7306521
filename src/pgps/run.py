"""Runs: one compiled program per method and shape for all seeds, and the host loop around it.

The host runs compiled chunks of steps, so that progress, callbacks and Ctrl-C live between them and no callback sits in
compiled code. Step k draws its randomness from fold_in(key, k): a run does not depend on how it was cut into chunks,
nor on the other runs of the program.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from pgps.density import Problem
from pgps.methods.base import TRANSPORT, AbstractMethod, Row, State, Trace
from pgps.progress import progress_bar
from pgps.result import Status

# Steps per compiled call: at most so many, and fewer while they would take longer than the host should stay away.
_MOST_STEPS_PER_CHUNK = 64
_CHUNK_SECONDS = 0.2


class Snapshot(NamedTuple):
    """What a callback sees after a step; at t = 0 there is no row yet."""

    t: float
    num_steps: int
    particles: PyTree
    row: dict[str, float]


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
    """Independent runs of one method in one program: a key for each, and a log-density for each or one for all."""

    problem: Problem
    logdensity_fns: Callable[[PyTree], Scalar] | None
    """One log-density whose arrays have a leading axis over the runs; None if the problem's own serves all."""
    keys: Array

    def map(self, function: Callable[[Problem, Array, PyTree], PyTree], runs: PyTree = None) -> PyTree:
        """Apply `function(problem, key, run)` to each run in turn, in one compiled loop."""
        arrays, rest = eqx.partition(self.logdensity_fns, eqx.is_array)

        def one(lane: tuple[PyTree, Array, PyTree]) -> PyTree:
            own, key, run = lane
            if self.logdensity_fns is None:
                return function(self.problem, key, run)
            problem = eqx.tree_at(lambda problem: problem.logdensity_fn, self.problem, eqx.combine(own, rest))
            return function(problem, key, run)

        return jax.lax.map(one, (arrays, self.keys, runs))


def drive(
    method: AbstractMethod,
    problem: Problem,
    logdensity_fns: Callable[[PyTree], Scalar] | None,
    keys: Array,
    num_particles: int,
    progress: bool | None = None,
    callback: Callable[[Snapshot], None] | None = None,
    observe: Observe | None = None,
) -> list[tuple[Run, Trace]]:
    """Run a method to its end for each key, chunk by chunk; returns each run and its trace.

    A callback sees the first run only, and is meant for a single one.
    """
    # Numbers become arrays, so that another value of alpha or psi does not mean another program.
    method = jax.tree.map(lambda leaf: _as_array(leaf, problem.structure.dtype), method)
    keys_init, keys_steps = jax.vmap(lambda key: jax.random.split(key), out_axes=1)(keys)
    lanes = Lanes(problem, logdensity_fns, keys_steps)
    with progress_bar(progress) as report:
        runs = _begin(method, eqx.tree_at(lambda lanes: lanes.keys, lanes, keys_init), num_particles)
        _check_start(runs.state, num_particles)
        # A first chunk of no steps: it compiles the program, and gives the trace its columns.
        chunks, size, running = [], 0, True
        try:
            while running:
                start = time.perf_counter()
                runs, buffer, counts = _advance(method, lanes, runs, jnp.asarray(size), observe)
                counts = np.asarray(counts)
                running = bool(np.any(np.asarray(runs.status) == Status.RUNNING))
                buffer = jax.tree.map(np.asarray, buffer)
                rows = [_filled(buffer, i, count) for i, count in enumerate(counts)]
                chunks.append(rows)
                loss = float(rows[0]["loss"][-1]) if "loss" in buffer and counts[0] else None
                report(float(np.mean(runs.state.clock.t)), int(np.sum(runs.state.num_steps)), loss)
                if callback is not None and counts[0] == size:
                    callback(_snapshot(problem, _lane(runs, 0), rows[0]))
                if size == 0 or callback is not None:
                    size = 1
                elif time.perf_counter() - start < _CHUNK_SECONDS / 2:
                    size = min(2 * size, _MOST_STEPS_PER_CHUNK)
        except KeyboardInterrupt:
            if not chunks:
                raise
            status = jnp.where(runs.status == Status.RUNNING, int(Status.INTERRUPTED), runs.status)
            runs = eqx.tree_at(lambda runs: runs.status, runs, status)
    return [
        (_lane(runs, i), jax.tree.map(lambda *parts: np.concatenate(parts), *[rows[i] for rows in chunks]))
        for i in range(len(keys))
    ]


def _filled(buffer: PyTree, lane: int, count: int) -> PyTree:
    """One run's rows of a chunk."""
    return jax.tree.map(lambda values: values[lane, :count], buffer)


def _lane(runs: Run, index: int) -> Run:
    return jax.tree.map(lambda leaf: leaf[index], runs)


def _as_array(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, float):
        return jnp.asarray(leaf, dtype)
    return jnp.asarray(leaf) if isinstance(leaf, int) and not isinstance(leaf, bool) else leaf


def _snapshot(problem: Problem, run: Run, rows: Trace) -> Snapshot:
    particles = jax.vmap(problem.structure.unravel)(run.state.population.particles)
    row = {name: float(values[-1]) for name, values in rows.items() if name != TRANSPORT and len(values)}
    return Snapshot(float(run.state.clock.t), int(run.state.num_steps), particles, row)


@eqx.filter_jit
def _begin(method: AbstractMethod, lanes: Lanes, num_particles: int) -> Run:
    def begin(problem: Problem, key: Array, _: None) -> Run:
        state = method.init(key, problem, num_particles)
        # No weak types, which steps would not give back: they would have `_advance` compiled twice.
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)
        nothing = jnp.asarray(0)
        run = Run(state, jnp.asarray(int(Status.RUNNING)), state.clock.t, nothing, nothing)
        return _judge(run, run, method)

    return lanes.map(begin)


@eqx.filter_jit
def _advance(
    method: AbstractMethod, lanes: Lanes, runs: Run, num_steps: Int[Array, ""], observe: Observe | None
) -> tuple[Run, Row, Int[Array, " lanes"]]:
    """Take up to `num_steps` steps of each run; returns the runs, their rows and how many of these are filled."""

    def step(problem: Problem, key: Array, state: State) -> tuple[State, Row]:
        state, row = method.step(jax.random.fold_in(key, state.num_steps), state, problem)
        if observe is not None:
            row |= observe(jax.vmap(problem.structure.unravel)(state.population.particles))
        return state, jax.tree.map(jnp.asarray, row)

    def unfinished(carry: tuple) -> Array:
        run, _, count = carry
        return (run.status == Status.RUNNING) & (count < num_steps)

    def advance_one(problem: Problem, key: Array, run: Run) -> tuple[Run, Row, Int[Array, ""]]:
        def advance(carry: tuple) -> tuple:
            run, rows, count = carry
            state, row = step(problem, key, run.state)
            judged = _judge(run, eqx.tree_at(lambda run: run.state, run, state), method)
            rows = jax.tree.map(lambda buffer, value: buffer.at[count].set(value), rows, row)
            return judged, rows, count + (judged.num_faults == 0)

        shapes = eqx.filter_eval_shape(lambda: step(problem, key, run.state)[1])
        rows = jax.tree.map(lambda leaf: jnp.zeros((_MOST_STEPS_PER_CHUNK, *leaf.shape), leaf.dtype), shapes)
        return jax.lax.while_loop(unfinished, advance, (run, rows, jnp.asarray(0)))

    return lanes.map(advance_one, runs)


def _judge(last: Run, run: Run, method: AbstractMethod) -> Run:
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
        Status.STEP_LIMIT: run.state.num_steps >= method.step_limit,
    }
    codes = [jnp.asarray(int(code)) for code in ends]
    status = jnp.select(list(ends.values()), codes, int(Status.RUNNING))
    state = jax.tree.map(lambda old, new: jnp.where(jnp.any(bad), old, new), last.state, run.state)
    # The evaluations of a failed step were made all the same.
    state = eqx.tree_at(lambda state: state.evaluations, state, run.state.evaluations)
    # A field that has turned nan takes t along: then the fault lies where the step began.
    fault_t = jnp.where(jnp.isfinite(clock.t), clock.t, last.state.clock.t)
    return Run(state, status, fault_t, jnp.sum(bad), jnp.argmax(bad))


def _check_start(states: State, num_particles: int) -> None:
    usable = np.asarray(jax.vmap(lambda population: jnp.any(population.usable & ~population.faulty))(states.population))
    if not np.all(usable):
        raise ValueError(
            f"logdensity_fn must be finite somewhere, got nan or -inf at all {num_particles} particles of initial; "
            "start where the target has mass, or check it for log(0) and 0/0"
        )
