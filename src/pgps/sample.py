"""The entry point: checks what it is given, runs a method on it, and puts the result together."""

import dataclasses
import datetime
import math
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree, Scalar

from pgps import _checks
from pgps._version import __version__
from pgps.again import made_again
from pgps.checkpoint import Checkpoint
from pgps.density import Problem, shape_of
from pgps.initial import AbstractLaw, as_law
from pgps.lanes import alike
from pgps.methods.base import AbstractMethod
from pgps.outcome import doubted, outcome
from pgps.programs import make_room
from pgps.recipes import exact
from pgps.result import PGPSWarning, Result, Status
from pgps.run import Observe, Options, Snapshot, drive
from pgps.settings import all_with_arrays, describe
from pgps.spread import Spread


def sample(
    logdensity_fn: Callable[[PyTree], Scalar],
    initial: AbstractLaw | tuple[Callable, Callable],
    *,
    key: Array,
    num_particles: int = 1000,
    method: AbstractMethod | None = None,
    progress: bool | None = None,
    callback: Callable[[Snapshot], None] | None = None,
    observe: Observe | None = None,
    checkpoint: Checkpoint | None = None,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    mesh: Mesh | None = None,
    batch_size: int | None = None,
    throw: bool = False,
) -> Result:
    """Sample a density that is known up to a constant.

    Args:
        logdensity_fn: Takes one particle (any pytree of floating-point arrays) and returns its log-density, a scalar.
        initial: Where particles start: `pgps.Normal`, `pgps.Uniform`, or a pair of functions (sample, logdensity).
            It also tells what a particle looks like.
        key: A key from `jax.random.key`. The same key gives the same result.
        num_particles: How many particles.
        method: The sampler; `pgps.exact()` if none is given.
        progress: Whether to show a progress bar; None shows it on a terminal.
        callback: Called with a `Snapshot` at the start, or where the run is resumed, and after every step; so, too, in
            a second run, if modes were missing.
        observe: Measures something on the particles after every step, for the trace: takes all particles (the pytree
            with a leading axis) and returns a dict of scalars. It is compiled, and so costs far less than a callback.
        checkpoint: Where to keep the run on disk, as in `pgps.Checkpoint("run.checkpoint")`. If the file is there, the
            run goes on from it, to the same bits as if it had never stopped. A second run, if modes were missing, has a
            file of its own next to it, `run.checkpoint.again`.
        max_evaluations: Stop after the step by which the log-density, with or without its gradient, was called so
            often, summed over particles.
        max_seconds: Stop after the chunk of steps by which this call, compilation included, has taken so long. One
            chunk is always done, so that a run with a checkpoint gets on.
        mesh: Devices that share the particles, as in `jax.make_mesh((4,), ("particles",))`; None has one device.
        batch_size: How many particles the log-density is evaluated for at once on each device, to bound the memory that
            it takes; None has all of them.
        throw: Whether to raise an error if the run does not complete, instead of returning what there is.
    """
    start = time.perf_counter()
    deadline = _check_limits(checkpoint, max_evaluations, max_seconds, start)
    spread = Spread(mesh, batch_size)
    options = Options(progress, callback, observe, max_evaluations, deadline, checkpoint, spread)
    methods = [exact() if method is None else method]
    [result] = _sample([logdensity_fn], initial, [_check_key(key)], num_particles, methods, options)
    if throw and result.status != Status.COMPLETED:
        raise RuntimeError(result.warnings[0])
    _warn(result)
    return result


def sample_many(
    logdensity_fn: Callable[[PyTree], Scalar] | Sequence[Callable[[PyTree], Scalar]],
    initial: AbstractLaw | tuple[Callable, Callable],
    *,
    keys: Sequence[Array] | Array,
    num_particles: int = 1000,
    method: AbstractMethod | Sequence[AbstractMethod] | None = None,
    progress: bool | None = None,
    observe: Observe | None = None,
    at_once: int = 1,
) -> list[Result]:
    """Sample several times in one compiled program: with other keys, and with other densities or settings.

    Each result is that which `pgps.sample` gives for its key, density and method; the seconds in its provenance are
    those of all, divided by their number. Runs that are made again, since modes were missing, are so one by one.

    Args:
        logdensity_fn: One log-density for all keys, or one per key. In a list each must be an
            `equinox.Module`, or another callable pytree, and they may differ in the values of their arrays alone.
        initial: Where particles start.
        keys: Keys from `jax.random.key`, or from `jax.random.split`. The same key may come again.
        num_particles: How many particles in each run.
        method: The sampler, `pgps.exact()` if none is given; or one per key, as in
            `[pgps.paper(psi=psi) for psi in (0.05, 0.1)]`. They may differ in numbers alone, and in none that decides
            a shape, as a field's width does.
        progress: Whether to show a progress bar; None shows it on a terminal.
        observe: Measures something on the particles after every step, for the trace.
        at_once: How many runs are vectorised, by `jax.vmap`. One by one, in a compiled loop, they take the working
            memory of one; several at once fill an accelerator, and agree with single runs but for rounding, which may
            turn an acceptance.
    """
    keys = [_check_key(key) for key in keys]
    if not keys:
        raise ValueError("keys must hold at least one key, got none; pass jax.random.split(key, 10)")
    functions = _one_or_all("logdensity_fn", "function", logdensity_fn, keys)
    methods = _one_or_all("method", "method", exact() if method is None else method, keys)
    _checks.whole("at_once", at_once, at_least=1)
    options = Options(progress, observe=observe, at_once=min(at_once, len(keys)))
    results = _sample(functions, initial, keys, num_particles, methods, options)
    for result in results:
        _warn(result)
    return results


def _one_or_all(name: str, kind: str, given: Any, keys: list[Array]) -> list[Any]:
    members = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if len(members) not in (1, len(keys)):
        raise ValueError(f"{name} must be one {kind}, or one per key ({len(keys)}), got {len(members)}; match them")
    return members


def _sample(
    functions: list[Callable[[PyTree], Scalar]],
    initial: AbstractLaw | tuple[Callable, Callable],
    keys: list[Array],
    num_particles: int,
    methods: list[AbstractMethod],
    options: Options,
) -> list[Result]:
    """A result for each key; there is one log-density for all keys, or one per key, and so with methods."""
    start = time.perf_counter()
    for function in functions:
        _checks.function("logdensity_fn", function, "(particle) -> scalar")
    _checks.whole("num_particles", num_particles, at_least=2, at_most=2**31 - 1)
    for method in methods:
        _checks.instance(
            "method", method, AbstractMethod, "pgps.exact(), pgps.paper(), pgps.training_free() or pgps.methods"
        )
    _check_spread(num_particles, options)
    problem = _check_problem(functions[0], as_law(initial), options.spread)
    if options.observe is not None:
        _check_observe(options.observe, problem, num_particles)
    if len(functions) > 1 or len(methods) > 1:
        _check_alike(functions, methods, problem)

    make_room()
    problems = [dataclasses.replace(problem, logdensity_fn=function) for function in functions]
    driven = drive(methods, problems, jnp.stack(keys), num_particles, options)
    seconds = driven.earlier_seconds + (time.perf_counter() - start) / len(keys)
    results, interrupted = [], False
    for i, ((run, trace), key) in enumerate(zip(driven.runs, keys, strict=True)):
        method, own = methods[i % len(methods)], problems[i % len(problems)]
        provenance = _provenance(method, own, key, num_particles, seconds)
        if driven.resumed_at:
            provenance["resumed_at"] = driven.resumed_at
        first = outcome(run, trace, method, own, key, provenance, options)
        result = first.result
        if not interrupted:
            result, interrupted = made_again(first, method, own, key, num_particles, options)
        if driven.failure:
            result = doubted(result, driven.failure)
        results.append(result)
    return results


def _warn(result: Result) -> None:
    if result.warnings:
        warnings.warn("\n".join(result.warnings), PGPSWarning, stacklevel=3)


def _check_alike(functions: list[Callable[[PyTree], Scalar]], methods: list[AbstractMethod], problem: Problem) -> None:
    """See that one program can serve all."""
    if not alike(functions):
        raise ValueError(
            "logdensity_fn must be a list of callables that differ in the values of their arrays alone, got "
            f"{_checks.show(functions)}; write the density as an equinox.Module, or call pgps.sample for each"
        )
    if not alike(all_with_arrays(methods, problem.structure.dtype)):
        raise ValueError(
            "method must be a list of methods that differ in numbers alone, and in none that decides a shape, got "
            f"{_checks.show(methods)}; leave all else alike, or call pgps.sample for each"
        )


def _check_limits(
    checkpoint: Checkpoint | None, max_evaluations: int | None, max_seconds: float | None, start: float
) -> float:
    """Look at what may end a run early; returns when its time is over."""
    if checkpoint is not None:
        _checks.instance("checkpoint", checkpoint, Checkpoint, "pgps.Checkpoint('run.checkpoint')")
    if max_evaluations is not None:
        _checks.whole("max_evaluations", max_evaluations, at_least=1)
    if max_seconds is None:
        return math.inf
    _checks.positive("max_seconds", max_seconds)
    return start + max_seconds


def _check_spread(num_particles: int, options: Options) -> None:
    options.spread.check(num_particles)
    processes = options.spread.num_processes
    for name, value in (("checkpoint", options.checkpoint), ("callback", options.callback)):
        if processes > 1 and value is not None:
            raise ValueError(f"{name} must be None with {processes} processes, got {_checks.show(value)}; leave it out")


def _check_observe(observe: Observe, problem: Problem, num_particles: int) -> None:
    _checks.function("observe", observe, "(particles) -> dict of scalars")
    particles = jax.eval_shape(
        jax.vmap(problem.structure.unravel),
        jax.ShapeDtypeStruct((num_particles, problem.structure.dim), problem.structure.dtype),
    )
    try:
        seen = jax.eval_shape(observe, particles)
    except Exception as error:
        raise ValueError(f"observe fails on particles ({_reason(error)}); write it with jax.numpy") from error
    if not isinstance(seen, dict) or any(getattr(value, "shape", None) != () for value in seen.values()):
        raise ValueError(f"observe must return a dict of scalars, got {_checks.show(seen)}; as in {{'mean': ...}}")


def _check_key(key: Any) -> Array:
    is_array = isinstance(key, jax.Array | np.ndarray)
    if is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key  # pyright: ignore[reportReturnType]
    if is_array and key.dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise TypeError(f"key must be a single random key, got {_checks.show(key)}; pass jax.random.key(0)")


def _check_problem(logdensity_fn: Callable[[PyTree], Scalar], law: AbstractLaw, spread: Spread) -> Problem:
    """Trace the densities once, without compiling, and see that they fit together."""
    particle = shape_of(law.sample, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", particle)
    for leaf in jax.tree.leaves(particle):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"initial must draw floating-point particles, got {shapes}; convert them to float")
    for name, function in (("logdensity_fn", logdensity_fn), ("initial's log-density", law.logdensity)):
        try:
            value = shape_of(function, particle)
        except Exception as error:
            raise ValueError(
                f"{name} fails on a particle {shapes} ({_reason(error)}); it must take one particle as initial draws "
                "it and be written with jax.numpy"
            ) from error
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            got = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", value)
            raise ValueError(f"{name} must return one floating-point scalar, got {got}; sum over what it returns")
    problem = Problem.of(logdensity_fn, law, spread)
    try:
        shape_of(problem.target_score, problem.center)
    except Exception as error:
        remedy = "make it differentiable in reverse mode"
        raise ValueError(f"logdensity_fn has no gradient ({_reason(error)}); {remedy}") from error
    return problem


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _provenance(
    method: AbstractMethod, problem: Problem, key: Array, num_particles: int, seconds: float
) -> dict[str, Any]:
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
