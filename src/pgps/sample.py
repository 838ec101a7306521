"""The entry point: checks, one compiled program per method and shape, and the host loop around it.

The host runs compiled chunks of steps, so that progress, callbacks and Ctrl-C live between them and no callback sits in
compiled code. Step k draws its randomness from fold_in(key, k): a run does not depend on how it was cut into chunks.
"""

import datetime
import platform
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from pgps import _checks
from pgps._version import __version__
from pgps.density import Problem
from pgps.initial import AbstractLaw, as_law
from pgps.methods.base import AbstractMethod, Row, State
from pgps.progress import progress_bar
from pgps.recipes import paper
from pgps.result import PGPSWarning, Result, Status
from pgps.settings import describe

# Steps per compiled call: at most so many, and fewer while they would take longer than the host should stay away.
_MOST_STEPS_PER_CHUNK = 64
_CHUNK_SECONDS = 0.2


class Snapshot(NamedTuple):
    """What a callback sees after a step; at t = 0 there is no row yet."""

    t: float
    num_steps: int
    particles: PyTree
    row: dict[str, float]


class _Run(eqx.Module):
    """A run on the device: the last good state, and what went wrong after it, if anything did."""

    state: State
    status: Int[Array, ""]
    fault_t: Scalar
    num_faults: Int[Array, ""]
    first_fault: Int[Array, ""]


def sample(
    logdensity_fn: Callable[[PyTree], Scalar],
    initial: AbstractLaw | tuple[Callable, Callable],
    *,
    key: Array,
    num_particles: int = 1000,
    method: AbstractMethod | None = None,
    progress: bool | None = None,
    callback: Callable[[Snapshot], None] | None = None,
    throw: bool = False,
) -> Result:
    """Sample a density that is known up to a constant.

    Args:
        logdensity_fn: Takes one particle (any pytree of floating-point arrays) and returns its log-density, a scalar.
        initial: Where particles start: `pgps.Normal`, `pgps.Uniform`, or a pair of functions (sample, logdensity).
            It also tells what a particle looks like.
        key: A key from `jax.random.key`. The same key gives the same result.
        num_particles: How many particles.
        method: The sampler; `pgps.paper()` if none is given.
        progress: Whether to show a progress bar; None shows it on a terminal.
        callback: Called with a `Snapshot` at t = 0 and after every step.
        throw: Whether to raise an error if the run does not complete, instead of returning what there is.
    """
    start = time.perf_counter()
    method = paper() if method is None else method
    _checks.function("logdensity_fn", logdensity_fn, "(particle) -> scalar")
    _checks.whole("num_particles", num_particles, at_least=2, at_most=2**31 - 1)
    _checks.instance("method", method, AbstractMethod, "pgps.paper(), pgps.training_free() or pgps.methods")
    key = _check_key(key)
    problem = _check_problem(logdensity_fn, as_law(initial))

    run, rows = _drive(method, problem, key, num_particles, progress, callback)
    state = run.state
    status = Status(int(run.status))
    trace = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    doubts = _status_doubts(status, run, num_particles) + method.doubts(trace) + _support_doubts(state, status)
    result = Result(
        particles=jax.vmap(problem.structure.unravel)(state.population.particles),
        log_weights=_plain_log_weights(state, status),
        status=status,
        t=float(state.clock.t),
        num_evaluations=jax.tree.map(lambda count: int(count) * num_particles, state.evaluations),
        trace=trace,
        warnings=tuple(doubts),
        provenance=_provenance(method, problem, key, num_particles, time.perf_counter() - start),
    )
    if throw and status != Status.COMPLETED:
        raise RuntimeError(doubts[0])
    if doubts:
        warnings.warn("\n".join(doubts), PGPSWarning, stacklevel=2)
    return result


def _check_key(key: Any) -> Array:
    is_array = isinstance(key, jax.Array | np.ndarray)
    if is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key  # pyright: ignore[reportReturnType]
    if is_array and key.dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise TypeError(f"key must be a single random key, got {_checks.show(key)}; pass jax.random.key(0)")


def _check_problem(logdensity_fn: Callable[[PyTree], Scalar], law: AbstractLaw) -> Problem:
    """Trace the densities once, without compiling, and see that they fit together."""
    particle = jax.eval_shape(law.sample, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", particle)
    for leaf in jax.tree.leaves(particle):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"initial must draw floating-point particles, got {shapes}; convert them to float")
    for name, function in (("logdensity_fn", logdensity_fn), ("initial's log-density", law.logdensity)):
        try:
            value = jax.eval_shape(function, particle)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"{name} fails on a particle {shapes} ({reason}); it must take one particle as initial draws it and "
                "be written with jax.numpy"
            ) from error
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            got = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", value)
            raise ValueError(f"{name} must return one floating-point scalar, got {got}; sum over what it returns")
    problem = Problem.of(logdensity_fn, law)
    try:
        jax.eval_shape(jax.grad(problem.log_target), problem.center)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"logdensity_fn has no gradient ({reason}); make it differentiable in reverse mode") from error
    return problem


def _drive(
    method: AbstractMethod,
    problem: Problem,
    key: Array,
    num_particles: int,
    progress: bool | None,
    callback: Callable[[Snapshot], None] | None,
) -> tuple[_Run, list[dict[str, np.ndarray]]]:
    """Run a method to its end, chunk by chunk; returns the run and the rows of its trace."""
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
    return run, chunks


def _as_array(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, float):
        return jnp.asarray(leaf, dtype)
    return jnp.asarray(leaf) if isinstance(leaf, int) and not isinstance(leaf, bool) else leaf


def _snapshot(problem: Problem, run: _Run, rows: dict[str, np.ndarray]) -> Snapshot:
    particles = jax.vmap(problem.structure.unravel)(run.state.population.particles)
    row = {name: float(values[-1]) for name, values in rows.items() if len(values)}
    return Snapshot(float(run.state.clock.t), int(run.state.num_steps), particles, row)


@eqx.filter_jit
def _begin(method: AbstractMethod, problem: Problem, key: Array, num_particles: int) -> _Run:
    state = method.init(key, problem, num_particles)
    evaluations = jax.tree.map(jnp.asarray, state.evaluations)
    nothing = jnp.asarray(0)
    run = _Run(
        eqx.tree_at(lambda s: s.evaluations, state, evaluations),
        jnp.asarray(int(Status.RUNNING)),
        state.clock.t,
        nothing,
        nothing,
    )
    return _judge(run, run, method)


@eqx.filter_jit
def _advance(
    method: AbstractMethod, problem: Problem, key: Array, run: _Run, num_steps: Int[Array, ""]
) -> tuple[_Run, Row, Int[Array, ""]]:
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


def _judge(last: _Run, run: _Run, method: AbstractMethod) -> _Run:
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
    return _Run(state, status, fault_t, jnp.sum(bad), jnp.argmax(bad))


def _check_start(state: State, num_particles: int) -> None:
    population = state.population
    if not np.any(population.usable & ~population.faulty):
        raise ValueError(
            f"logdensity_fn must be finite somewhere, got nan or -inf at all {num_particles} particles of initial; "
            "start where the target has mass, or check it for log(0) and 0/0"
        )


def _plain_log_weights(state: State, status: Status) -> Array:
    """Weights of a method without weights: equal, and none outside the target's support."""
    alive = state.population.alive if status == Status.COMPLETED else jnp.ones_like(state.population.alive)
    return jnp.where(alive, 0.0, -jnp.inf)


def _status_doubts(status: Status, run: _Run, num_particles: int) -> list[str]:
    where = f"at t = {float(run.fault_t):.4g}"
    kept = f"the particles returned are the last good ones, at t = {float(run.state.clock.t):.4g}"
    culprits = f"{int(run.num_faults)} of {num_particles} particles (the first: {int(run.first_fault)})"
    match status:
        case Status.NONFINITE_DENSITY:
            return [f"the log-density or its gradient became nan or +inf {where} for {culprits}; {kept}"]
        case Status.NONFINITE_PARTICLES:
            return [
                f"coordinates became nan or infinite {where} for {culprits}, so steps were too large or the field's "
                f"training diverged; {kept}"
            ]
        case Status.OUTSIDE_SUPPORT:
            return [f"the log-density became -inf {where} for every particle, so steps were too large; {kept}"]
        case Status.STEP_LIMIT:
            return [f"the step limit of {int(run.state.num_steps)} was reached at t = {float(run.state.clock.t):.4g}"]
        case Status.INTERRUPTED:
            return [f"interrupted at t = {float(run.state.clock.t):.4g}"]
        case _:
            return []


def _support_doubts(state: State, status: Status) -> list[str]:
    outside = int(np.sum(~np.asarray(state.population.alive)))
    if status != Status.COMPLETED or outside == 0:
        return []
    return [f"{outside} particles ended outside the target's support (log-density -inf) and have weight 0"]


def _provenance(method: AbstractMethod, problem: Problem, key: Array, num_particles: int, seconds: float) -> dict:
    return {
        "method": describe(method),
        "initial": describe(problem.initial),
        "logdensity_fn": describe(problem.logdensity_fn),
        "num_particles": num_particles,
        "dim": problem.structure.dim,
        "dtype": str(problem.structure.dtype),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "seconds": seconds,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"pgps": __version__, "jax": jax.__version__, "python": platform.python_version()},
        "device": jax.devices()[0].device_kind,
    }
