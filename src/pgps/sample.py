"""The entry point: checks what it is given, runs a method on it, and puts the result together."""

import datetime
import platform
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from pgps import _checks
from pgps._version import __version__
from pgps.density import Problem
from pgps.initial import AbstractLaw, as_law
from pgps.methods.base import AbstractMethod, State
from pgps.recipes import paper
from pgps.result import PGPSWarning, Result, Status
from pgps.run import Run, Snapshot, drive
from pgps.settings import describe


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

    run, trace = drive(method, problem, key, num_particles, progress, callback)
    state, status = run.state, Status(int(run.status))
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


def _plain_log_weights(state: State, status: Status) -> Array:
    """Weights of a method without weights: equal, and none outside the target's support."""
    alive = state.population.alive if status == Status.COMPLETED else jnp.ones_like(state.population.alive)
    return jnp.where(alive, 0.0, -jnp.inf)


def _status_doubts(status: Status, run: Run, num_particles: int) -> list[str]:
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
