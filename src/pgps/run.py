"""A run: one compiled program per method and shape, and the host loop around it.

The host runs compiled chunks of steps, so that progress, callbacks and Ctrl-C live between them and no callback sits in
compiled code. Step k draws its randomness from fold_in(key, k): a run does not depend on how it was cut into chunks.
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
from pgps.methods.base import AbstractMethod, Row, State, Trace
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


class Run(eqx.Module):
    """A run on the device: the last good state, and what went wrong after it, if anything did."""

    state: State
    status: Int[Array, ""]
    fault_t: Scalar
    num_faults: Int[Array, ""]
    first_fault: Int[Array, ""]


def drive(
    method: AbstractMethod,
    problem: Problem,
    key: Array,
    num_particles: int,
    progress: bool | None,
    callback: Callable[[Snapshot], None] | None,
) -> tuple[Run, Trace]:
    """Run a method to its end, chunk by chunk; returns the run and its trace."""
    # Numbers become arrays, so that another value of alpha or psi does not mean another program.
    method = jax.tree.map(lambda leaf: _as_array(leaf, problem.structure.dtype), method)
    key_init, key_steps = jax.random.split(key)
    with progress_bar(progress) as report:
        run = _begin(method, problem, key_init, num_particles)
        _check_start(run.state, num_particles)
        # A first chunk of no steps: it compiles the program, and gives the trace its columns.
        chunks, size, running = [], 0, True
        try:
            while running:
                start = time.perf_counter()
                run, buffer, count = _advance(method, problem, key_steps, run, jnp.asarray(size))
                running = int(run.status) == Status.RUNNING
                rows = {name: np.asarray(values)[: int(count)] for name, values in buffer.items()}
                chunks.append(rows)
                loss = float(rows["loss"][-1]) if "loss" in rows and int(count) else None
                report(float(run.state.clock.t), int(run.state.num_steps), loss)
                if callback is not None and int(count) == size:
                    callback(_snapshot(problem, run, rows))
                if size == 0 or callback is not None:
                    size = 1
                elif time.perf_counter() - start < _CHUNK_SECONDS / 2:
                    size = min(2 * size, _MOST_STEPS_PER_CHUNK)
        except KeyboardInterrupt:
            if not chunks:
                raise
            run = eqx.tree_at(lambda run: run.status, run, jnp.asarray(int(Status.INTERRUPTED)))
    return run, {name: np.concatenate([rows[name] for rows in chunks]) for name in chunks[0]}


def _as_array(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, float):
        return jnp.asarray(leaf, dtype)
    return jnp.asarray(leaf) if isinstance(leaf, int) and not isinstance(leaf, bool) else leaf


def _snapshot(problem: Problem, run: Run, rows: Trace) -> Snapshot:
    particles = jax.vmap(problem.structure.unravel)(run.state.population.particles)
    row = {name: float(values[-1]) for name, values in rows.items() if len(values)}
    return Snapshot(float(run.state.clock.t), int(run.state.num_steps), particles, row)


@eqx.filter_jit
def _begin(method: AbstractMethod, problem: Problem, key: Array, num_particles: int) -> Run:
    state = method.init(key, problem, num_particles)
    evaluations = jax.tree.map(jnp.asarray, state.evaluations)
    nothing = jnp.asarray(0)
    run = Run(
        eqx.tree_at(lambda s: s.evaluations, state, evaluations),
        jnp.asarray(int(Status.RUNNING)),
        state.clock.t,
        nothing,
        nothing,
    )
    return _judge(run, run, method)


@eqx.filter_jit
def _advance(
    method: AbstractMethod, problem: Problem, key: Array, run: Run, num_steps: Int[Array, ""]
) -> tuple[Run, Row, Int[Array, ""]]:
    """Take up to `num_steps` steps; returns the run, a buffer of rows and how many of them are filled."""

    def unfinished(carry: tuple) -> Array:
        run, _, count = carry
        return (run.status == Status.RUNNING) & (count < num_steps)

    def advance(carry: tuple) -> tuple:
        run, rows, count = carry
        state, row = method.step(jax.random.fold_in(key, run.state.num_steps), run.state, problem)
        judged = _judge(run, eqx.tree_at(lambda run: run.state, run, state), method)
        rows = jax.tree.map(lambda buffer, value: buffer.at[count].set(value), rows, row)
        return judged, rows, count + (judged.num_faults == 0)

    shapes = eqx.filter_eval_shape(lambda: method.step(key, run.state, problem)[1])
    rows = jax.tree.map(lambda shape: jnp.zeros(_MOST_STEPS_PER_CHUNK, shape.dtype), shapes)
    return jax.lax.while_loop(unfinished, advance, (run, rows, jnp.asarray(0)))


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


def _check_start(state: State, num_particles: int) -> None:
    population = state.population
    if not np.any(population.usable & ~population.faulty):
        raise ValueError(
            f"logdensity_fn must be finite somewhere, got nan or -inf at all {num_particles} particles of initial; "
            "start where the target has mass, or check it for log(0) and 0/0"
        )
