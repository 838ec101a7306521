"""Runs: one compiled program per method and shape for all seeds, and the host loop around it.

The host runs compiled chunks of steps, so that progress, callbacks and Ctrl-C live between them and no callback sits in
compiled code. Step k draws its randomness from fold_in(key, k): a run does not depend on how it was cut into chunks,
nor on the other runs of the program.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from pgps.checkpoint import Checkpoint, Keeper, Kept
from pgps.density import Problem
from pgps.fingerprint import fingerprint
from pgps.interrupt import deferred_interrupt
from pgps.journal import Journal
from pgps.methods.base import TRANSPORT, AbstractMethod, Row, State, Trace
from pgps.progress import Report, progress_bar
from pgps.result import Status
from pgps.settings import with_arrays
from pgps.spread import ONE_DEVICE, Spread

# Steps per compiled call: at most so many, and fewer while they would take longer than the host should stay away.
_MOST_STEPS_PER_CHUNK = 64
_CHUNK_SECONDS = 0.2
# What ends a run from outside, and a later session may lift.
_CUT_SHORT = (Status.RUNNING, Status.INTERRUPTED, Status.TIME_LIMIT, Status.EVALUATION_LIMIT)


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
    method: AbstractMethod,
    problem: Problem,
    logdensity_fns: Callable[[PyTree], Scalar] | None,
    keys: Array,
    num_particles: int,
    options: Options,
) -> Driven:
    """Run a method to its end for each key, chunk by chunk, from the start or from a checkpoint."""
    start, keeper = time.perf_counter(), None
    if options.checkpoint is not None:
        keeper = Keeper(options.checkpoint, fingerprint(method, problem, keys[0], num_particles, options.observe))
    method = with_arrays(method, problem.structure.dtype)
    keys_init, keys_steps = jax.vmap(lambda key: jax.random.split(key), out_axes=1)(keys)
    lanes = Lanes(problem, logdensity_fns, keys_steps)
    limit = _limit_per_particle(options.max_evaluations, method.num_evaluated(num_particles))
    begin = partial(_begin, method, eqx.tree_at(lambda lanes: lanes.keys, lanes, keys_init), num_particles, limit)
    advance = partial(_advance, method, lanes, limit, options.observe)

    kept = None if keeper is None else _resume(keeper, begin, advance, limit)
    spread = problem.spread
    with progress_bar(options.progress if jax.process_index() == 0 else False) as report:
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
            count = journal.add(*advance(journal.runs, jnp.asarray(size)))
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


def _next_size(size: int, seconds: float) -> int:
    """How many steps the next chunk should have, after one that took so long."""
    if seconds < _CHUNK_SECONDS / 2:
        return min(2 * size, _MOST_STEPS_PER_CHUNK)
    return max(size // 2, 1) if seconds > 2 * _CHUNK_SECONDS else size


def _limit_per_particle(max_evaluations: int | None, num_particles: int) -> Int[Array, ""]:
    """Calls for one particle with which all have made `max_evaluations`: such numbers fit into 32 bits."""
    most = np.iinfo(np.int32).max
    return jnp.asarray(most if max_evaluations is None else min(math.ceil(max_evaluations / num_particles), most))


def _lane(runs: Run, index: int) -> Run:
    return jax.tree.map(lambda leaf: leaf[index], runs)


def _snapshot(problem: Problem, run: Run, rows: Trace) -> Snapshot:
    particles = jax.vmap(problem.structure.unravel)(run.state.population.particles)
    row = {name: float(values[-1]) for name, values in rows.items() if name != TRANSPORT and len(values)}
    return Snapshot(float(run.state.clock.t), int(run.state.num_steps), particles, row)


@eqx.filter_jit
def _begin(method: AbstractMethod, lanes: Lanes, num_particles: int, limit: Int[Array, ""]) -> Run:
    def begin(problem: Problem, key: Array, _: None) -> Run:
        state = placed(method.init(key, problem, num_particles), problem.spread)
        # No weak types, which steps would not give back: they would have `_advance` compiled twice.
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)
        nothing = jnp.asarray(0)
        run = Run(state, jnp.asarray(int(Status.RUNNING)), state.clock.t, nothing, nothing)
        return _judge(run, run, method, limit)

    return lanes.map(begin)


@eqx.filter_jit
def _advance(
    method: AbstractMethod,
    lanes: Lanes,
    limit: Int[Array, ""],
    observe: Observe | None,
    runs: Run,
    num_steps: Int[Array, ""],
) -> tuple[Run, Row, Int[Array, " lanes"]]:
    """Take up to `num_steps` steps of each run; returns the runs, their rows and how many of these are filled."""

    # Compiled on its own so that it is traced once, for the rows' shapes and for the loop.
    @eqx.filter_jit
    def step(problem: Problem, key: Array, state: State) -> tuple[State, Row]:
        state, row = method.step(jax.random.fold_in(key, state.num_steps), state, problem)
        state = placed(state, problem.spread)
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
            judged = _judge(run, eqx.tree_at(lambda run: run.state, run, state), method, limit)
            rows = jax.tree.map(lambda buffer, value: buffer.at[count].set(value), rows, row)
            return judged, rows, count + (judged.num_faults == 0)

        shapes = eqx.filter_eval_shape(step, problem, key, run.state)[1]
        rows = jax.tree.map(lambda leaf: jnp.zeros((_MOST_STEPS_PER_CHUNK, *leaf.shape), leaf.dtype), shapes)
        return jax.lax.while_loop(unfinished, advance, (run, rows, jnp.asarray(0)))

    return lanes.map(advance_one, runs)


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
    state = jax.tree.map(lambda old, new: jnp.where(jnp.any(bad), old, new), last.state, run.state)
    # The evaluations of a failed step were made all the same.
    state = eqx.tree_at(lambda state: state.evaluations, state, run.state.evaluations)
    # A field that has turned nan takes t along: then the fault lies where the step began.
    fault_t = jnp.where(jnp.isfinite(clock.t), clock.t, last.state.clock.t)
    judged = Run(state, status, fault_t, jnp.sum(bad), jnp.argmax(bad))
    # Weak types become strong, as they are in a file: a change of them from call to call means another compilation.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), judged)


def _check_start(states: State, num_particles: int) -> None:
    usable = np.asarray(jax.vmap(lambda population: jnp.any(population.usable & ~population.faulty))(states.population))
    if not np.all(usable):
        raise ValueError(
            f"logdensity_fn must be finite somewhere, got nan or -inf at all {num_particles} particles of initial; "
            "start where the target has mass, or check it for log(0) and 0/0"
        )
