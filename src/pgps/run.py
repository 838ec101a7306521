"""The host's loop around compiled runs.

It runs chunks of steps, so that progress, callbacks and Ctrl-C live between them and no callback sits in compiled code.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from pgps.checkpoint import Checkpoint, Keeper, Kept
from pgps.density import Population, Problem
from pgps.fingerprint import fingerprint
from pgps.interrupt import deferred_interrupt
from pgps.journal import Journal
from pgps.lanes import MOST_STEPS, Lanes, Observe, Run, advance_runs, begin_runs, compiled_advance_runs
from pgps.methods.base import TRANSPORT, AbstractMethod, Row, State, Trace
from pgps.progress import Report, progress_bar
from pgps.result import Status
from pgps.settings import all_with_arrays
from pgps.spread import ONE_DEVICE, Spread

# The host calls as many steps at once as should take so long.
_CHUNK_SECONDS = 0.2
# What ends a run from outside, and a later session may lift.
_CUT_SHORT = (Status.RUNNING, Status.INTERRUPTED, Status.TIME_LIMIT, Status.EVALUATION_LIMIT)


class Snapshot(NamedTuple):
    """What a callback sees after a step; at t = 0 there is no row yet."""

    t: float
    num_steps: int
    particles: PyTree
    row: dict[str, float]


class Options(NamedTuple):
    """How a run is watched, where it is kept, and what may end it early."""

    progress: bool | None = None
    callback: Callable[[Snapshot], None] | None = None
    """Sees the first run only, and is meant for a single one."""
    observe: Observe | None = None
    max_evaluations: int | None = None
    """Of each run: calls of the log-density, summed over particles."""
    deadline: float = math.inf
    """When to stop, by `time.perf_counter`."""
    checkpoint: Checkpoint | None = None
    """For a single run."""
    spread: Spread = ONE_DEVICE
    at_once: int = 1
    """How many of several runs are vectorised."""


class Driven(NamedTuple):
    """Runs that have ended, with their traces, and what became of their checkpoint."""

    runs: list[tuple[Run, Trace]]
    earlier_seconds: float = 0.0
    """What earlier sessions took, if there were any."""
    resumed_at: list[float] | None = None
    """The times t from which a run with a checkpoint went on."""
    failure: str | None = None
    """Why the last checkpoint is not on the disk; None if it is."""


def drive(
    methods: Sequence[AbstractMethod],
    problems: Sequence[Problem],
    keys: Array,
    num_particles: int,
    options: Options,
) -> Driven:
    """Run a method to its end for each key, chunk by chunk, from the start or from a checkpoint.

    There is one method for all keys, or one per key, and so with problems.
    """
    start, keeper, method, problem = time.perf_counter(), None, methods[0], problems[0]
    if options.checkpoint is not None:
        keeper = Keeper(options.checkpoint, fingerprint(method, problem, keys[0], num_particles, options.observe))
    running = all_with_arrays(methods, problem.structure.dtype)
    keys_init, keys_steps = _two_of_each(keys)
    lanes = Lanes.of(running, problems, keys_steps, options.at_once)
    lanes_init = dataclasses.replace(lanes, keys=keys_init)
    limit = _limit_per_particle(options.max_evaluations, method.num_evaluated(num_particles))
    begin = partial(begin_runs, lanes_init, num_particles, limit)
    advance = partial(compiled_advance_runs(), lanes, limit, options.observe)

    kept = None
    if keeper is not None:
        kept = _resume(keeper, begin, partial(advance_runs, lanes, limit, options.observe), limit)
    spread = problem.spread
    show = options.progress if jax.process_index() == 0 else False
    with progress_bar(show) as report, _failures_on_the_device():
        if kept is None:
            kept = Kept(begin(), [], 0.0, [])
            _check_start(kept.runs.state, num_particles)
        journal = Journal(kept, start)
        if journal.is_running or not kept.rows:
            # A first chunk of no steps: it compiles the program, and gives the trace its columns.
            journal.add(*advance(journal.runs, jnp.asarray(0)))
            if keeper is not None:
                keeper.begin(journal.kept())
        _loop(journal, advance, problem, options, report, keeper)
    runs = spread.gathered(journal.runs)
    ended = [(_lane(runs, i), rows) for i, rows in enumerate(journal.rows())]
    return Driven(ended) if keeper is None else Driven(ended, kept.seconds, kept.resumed_at, keeper.failure)


@jax.jit
def _two_of_each(keys: Array) -> Array:
    return jax.vmap(lambda key: jax.random.split(key), out_axes=1)(keys)


Advance = Callable[[Run, Array], tuple[Run, Row, Int[Array, " lanes"]]]


def _resume(keeper: Keeper, begin: Callable[[], Run], advance: Advance, limit: Int[Array, ""]) -> Kept | None:
    """What the checkpoint holds; what was cut short runs on, unless a limit still forbids it."""
    if not keeper.path.exists():
        return None
    shapes = eqx.filter_eval_shape(begin)
    _, rows, _ = eqx.filter_eval_shape(advance, shapes, jnp.asarray(0))
    kept = keeper.read(shapes, rows)
    if kept is None:
        return None
    runs: Run = kept.runs
    cut_short = jnp.isin(runs.status, jnp.asarray([int(status) for status in _CUT_SHORT]))
    allowed = jnp.where(runs.state.evaluations.total < limit, int(Status.RUNNING), int(Status.EVALUATION_LIMIT))
    runs = eqx.tree_at(lambda runs: runs.status, runs, jnp.where(cut_short, allowed, runs.status))
    return kept._replace(runs=runs, resumed_at=[*kept.resumed_at, float(runs.state.clock.t[0])])


def _loop(
    journal: Journal,
    advance: Advance,
    problem: Problem,
    options: Options,
    report: Report,
    keeper: Keeper | None,
) -> None:
    """Take chunks of steps until the runs end, or have to. A chunk that has begun is always finished."""
    spread = problem.spread

    def show(failed: bool = False) -> bool:
        """Tell of the last chunk; returns whether the callback lets the run go on."""
        rows, state = journal.last_rows(), journal.runs.state
        loss = float(rows["loss"][-1]) if "loss" in rows and len(rows["loss"]) else None
        report(float(np.mean(state.clock.t)), int(np.sum(state.num_steps)), loss)
        try:
            if options.callback is not None and not failed:
                options.callback(_snapshot(problem, _lane(journal.runs, 0), rows))
        except KeyboardInterrupt:
            return False
        return True

    with deferred_interrupt() as interrupted:
        size, advanced, goes_on = 1, False, show()
        while journal.is_running and goes_on and not interrupted():
            start = time.perf_counter()
            try:
                count = journal.add(*advance(journal.runs, jnp.asarray(size)))
            except (jax.errors.JaxRuntimeError, ValueError):
                # A host function has raised, or memory was short: the chunks before are not lost.
                if keeper is not None and advanced:
                    keeper.write(journal.kept())
                raise
            advanced, goes_on = True, show(failed=count < size)
            now = time.perf_counter()
            facts = spread.agreed({"seconds": now - start, "late": now >= options.deadline, "goes_on": goes_on})
            goes_on = bool(facts["goes_on"])
            if facts["late"]:
                journal.end(Status.TIME_LIMIT)
            elif keeper is not None and keeper.is_due and journal.is_running:
                keeper.write(journal.kept())
            size = _next_size(size, float(facts["seconds"])) if options.callback is None else 1
        journal.end(Status.INTERRUPTED)
        if keeper is not None and advanced:
            keeper.write(journal.kept())


@contextlib.contextmanager
def _failures_on_the_device() -> Iterator[None]:
    """A host function that has raised shows as one kind of error; JAX's own depends on where it comes to light."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("INTERNAL:"):
            raise
        raise jax.errors.JaxRuntimeError(str(error)) from error


def _next_size(size: int, seconds: float) -> int:
    """How many steps the next chunk should have, after one that took so long."""
    if seconds < _CHUNK_SECONDS / 2:
        return int(min(size * _CHUNK_SECONDS / max(seconds, 1e-6), MOST_STEPS))
    return max(size // 2, 1) if seconds > 2 * _CHUNK_SECONDS else size


def _limit_per_particle(max_evaluations: int | None, num_particles: int) -> Int[Array, ""]:
    """Calls for one particle with which all have made `max_evaluations`: such numbers fit into 32 bits."""
    most = np.iinfo(np.int32).max
    return jnp.asarray(most if max_evaluations is None else min(math.ceil(max_evaluations / num_particles), most))


@jax.jit
def _lane(runs: Run, index: Int[Array, ""] | int) -> Run:
    return jax.tree.map(lambda leaf: leaf[index], runs)


def _snapshot(problem: Problem, run: Run, rows: Trace) -> Snapshot:
    particles = jax.vmap(problem.structure.unravel)(run.state.population.particles)
    row = {name: float(values[-1]) for name, values in rows.items() if name != TRANSPORT and len(values)}
    return Snapshot(float(run.state.clock.t), int(run.state.num_steps), particles, row)


@jax.jit
@jax.vmap
def _any_usable(population: Population) -> Bool[Array, ""]:
    return jnp.any(population.usable & ~population.faulty)


def _check_start(states: State, num_particles: int) -> None:
    if not np.all(_any_usable(states.population)):
        raise ValueError(
            f"logdensity_fn must be finite somewhere, got nan or -inf at all {num_particles} particles of initial; "
            "start where the target has mass, or check it for log(0) and 0/0"
        )
