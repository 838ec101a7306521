"""What a run comes to when it has ended: its result, and all that should be doubted about it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps.density import Evaluations, Population, Problem, Structure
from pgps.draw import Fitted
from pgps.edges import has_edge, most_values
from pgps.lanes import Run
from pgps.methods.base import TRANSPORT, AbstractMethod, State, Trace
from pgps.methods.doubts import mixing_doubts, suspects_edge
from pgps.methods.pgps import PGPS
from pgps.metrics.base import normalised_weights
from pgps.result import Result, Status
from pgps.run import Options
from pgps.scouting import Maxima, accounts_for_evidence, at_rest, differences, unrest
from pgps.spread import Spread
from pgps.weights import Weights

# An error of the log evidence above which it, and what hangs on it, should be doubted.
_LARGEST_ERROR = 0.5
# A resolution of the log-density above which its rounding shows in the weights.
_LARGEST_RESOLUTION = 0.1
# The share of the particles above which it is doubted that the initial law covers the target.
_LARGEST_UNCOVERED = 0.01
# Folded into a run's key for the search after it, far from the numbers of its steps.
_SCOUTING = 2**30


class Outcome(NamedTuple):
    """A run that has ended."""

    result: Result
    missed: Maxima | None
    """Maxima of the density to start again from, if the particles have a wrong mass around some of them."""


def outcome(
    run: Run,
    trace: Trace,
    method: AbstractMethod,
    problem: Problem,
    key: Array,
    provenance: dict[str, Any],
    options: Options,
) -> Outcome:
    """The result of a run that has ended, with all that should be doubted about it."""
    num_particles = provenance["num_particles"]
    num_evaluated = method.num_evaluated(num_particles)
    calls = jax.tree.map(lambda count: int(count) * num_evaluated, run.state.evaluations)
    left = math.inf if options.max_evaluations is None else options.max_evaluations - calls.total
    # What comes after the run, scouts and chunks of fresh particles, has one device.
    here = dataclasses.replace(problem, spread=Spread(batch_size=options.spread.batch_size))
    weighed = None if run.state.weights is None else _weighed(run.state.weights)
    opinion = _second_opinion(run, weighed, method, here, jax.random.fold_in(key, _SCOUTING), left)
    opinion = _with_edges(opinion, run.state, trace, here, left)
    steps = trace.pop(TRANSPORT, None)
    state, status = run.state, Status(int(run.status))
    resolution = 0.0 if weighed is None else _resolution(state.population)
    doubts = _status_doubts(run, num_particles, options) + _resolution_doubts(resolution, state.population)
    settled = _settled(opinion, method, trace)
    doubts += [doubt for doubt in method.doubts(trace) if doubt not in settled]
    doubts += [*_support_doubts(state, status), *opinion.doubts]
    if isinstance(method, PGPS) and weighed is not None and status == Status.COMPLETED:
        doubts += _cover_doubts(state, weighed, here)
    # Weights at an earlier t are not those of the target.
    exact = weighed if status == Status.COMPLETED else None
    # Each step that is added to the log evidence rounds it, by up to half of the resolution.
    rounding = resolution * math.sqrt(len(trace["t"]) / 12)
    # Steps whose length follows chance make the evidence too low in heavy tails, by about so much.
    bias = float(np.sum(trace.get("ladder_bias", 0.0)))
    error = None if exact is None else math.hypot(float(exact.log_evidence_error), rounding, bias)
    if error is not None and error > _LARGEST_ERROR:
        doubts.append(f"the log evidence is uncertain by {error:.2g}, so it and the mode masses say little")
    result = Result(
        particles=_unravelled(problem.structure, state.population.particles),
        log_weights=_plain_log_weights(state, status) if weighed is None else weighed.log_weights,
        status=status,
        t=float(state.clock.t),
        num_evaluations=calls + opinion.evaluations,
        trace=trace,
        warnings=tuple(doubts),
        provenance=provenance,
        ess=None if exact is None else float(exact.ess),
        log_evidence=None if exact is None else float(exact.log_evidence),
        log_evidence_error=error,
        families=None if exact is None else exact.families,
        fitted=None
        if exact is None or not isinstance(method, PGPS)
        else Fitted(method, here, steps, state.memory.drawn_inside, jnp.asarray(rounding)),
    )
    return Outcome(result, opinion.missed)


def doubted(result: Result, doubt: str) -> Result:
    """The same with one more thing to doubt."""
    return dataclasses.replace(result, warnings=(*result.warnings, doubt))


def reason(error: BaseException) -> str:
    """The last line of an error, where JAX tells what a host function said."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


class Weighed(NamedTuple):
    """What weights say, computed at once."""

    log_weights: Float[Array, " n"]
    families: Int[Array, " n"]
    ess: Scalar
    log_evidence: Scalar
    log_evidence_error: Scalar


@jax.jit
def _weighed(weights: Weights) -> Weighed:
    return Weighed(*[getattr(weights, name) for name in Weighed._fields])


def _resolution(population: Population) -> float:
    """The spacing of floating-point numbers that are as large as the particles' log-densities, in the median."""
    values = np.asarray(population.logdensity)
    values = np.abs(values[np.isfinite(values)])
    # A few particles that are far out have values of their own, and no weight.
    return float(np.spacing(np.median(values).astype(values.dtype))) if values.size else 0.0


def _resolution_doubts(resolution: float, population: Population) -> list[str]:
    if resolution <= _LARGEST_RESOLUTION:
        return []
    dtype = population.logdensity.dtype
    return [
        f"values of the log-density are so large that {dtype} knows them to {resolution:.2g} only, so weights are "
        "rounded; leave constants out of it, or compute in 64 bits (JAX_ENABLE_X64=1)"
    ]


@eqx.filter_jit
def _unravelled(structure: Structure, particles: Float[Array, "n dim"]) -> PyTree:
    return jax.vmap(structure.unravel)(particles)


class Opinion(NamedTuple):
    """What a search for maxima of the density and the balance of scores make doubtful, and what it cost."""

    doubts: Sequence[str] = ()
    evaluations: Evaluations = Evaluations()
    missed: Maxima | None = None
    accounts_for_evidence: bool = False
    """Whether direct integration finds the evidence around the maxima, and as the particles have it."""


def _second_opinion(
    run: Run, weighed: Weighed | None, method: AbstractMethod, problem: Problem, key: Array, left: float
) -> Opinion:
    """Look at a run with other eyes.

    There is none if the method does not ask for it, or if it might take more evaluations than are left.
    """
    scouting = method.scouting if isinstance(method, PGPS) else None
    if scouting is None or weighed is None or int(run.status) != Status.COMPLETED:
        return Opinion()
    dim = problem.structure.dim
    if dim > scouting.max_dim or scouting.most_evaluations(dim) > left or not np.isfinite(weighed.log_evidence):
        return Opinion()
    try:
        around, maxima, evaluations = scouting.look(
            problem,
            key,
            np.asarray(run.state.population.particles),
            np.asarray(weighed.log_weights),
            np.asarray(weighed.families),
            float(weighed.log_evidence),
            float(weighed.log_evidence_error),
        )
        missing = differences(around)
        doubts = missing + ([] if run.state.memory.has_edge else _unrest(run.state, weighed))
    except (Exception, KeyboardInterrupt) as error:
        # Whatever the density does where scouts look, the run is complete, and not to be lost.
        return Opinion([f"there is no second opinion: the search for maxima ended by an error ({reason(error)})"])
    # Where islands differ so much, modes are more than particles can hold. A second run that covers those of them that
    # ascents have found would be sure of these, and silent about the others.
    again = missing and scouting.again and weighed.log_evidence_error <= _LARGEST_ERROR
    return Opinion(doubts, evaluations, maxima if again else None, not doubts and accounts_for_evidence(around))


def _settled(opinion: Opinion, method: AbstractMethod, trace: Trace) -> list[str]:
    """Doubts that an integral has settled: it needs no moves from mode to mode."""
    if not opinion.accounts_for_evidence or not isinstance(method, PGPS):
        return []
    return mixing_doubts(trace, method.adjustment)


def _with_edges(opinion: Opinion, state: State, trace: Trace, problem: Problem, left: float) -> Opinion:
    """The same with a look for edges around the last particles, if fields or moves have met places without density.

    Where the density is so small that it overflows there are such places, too, and nothing to doubt.
    """
    if not suspects_edge(trace):
        return opinion
    particles, evaluations = state.population.particles, opinion.evaluations
    if evaluations.total + most_values(len(particles)) * len(particles) <= left:
        try:
            found, looked = _edge_around(problem, particles)
            evaluations += jax.tree.map(lambda count: int(count) * len(particles), looked)
            if not found:
                return opinion._replace(evaluations=evaluations)
        except (Exception, KeyboardInterrupt):
            # The run is complete, and not to be lost; the doubt remains.
            pass
    doubt = (
        "the density falls to 0 at once somewhere that the initial law hardly reaches, which the first weights did not "
        "know of, so the evidence may be too low by more than its error; start from a law that reaches it"
    )
    return opinion._replace(doubts=[doubt, *opinion.doubts], evaluations=evaluations)


@eqx.filter_jit
def _edge_around(problem: Problem, particles: Float[Array, "n dim"]) -> tuple[Bool[Array, ""], Evaluations]:
    return has_edge(problem, particles, jnp.mean(particles, axis=0))


def _unrest(state: State, weighed: Weighed) -> list[str]:
    """Whether the particles and the scores at t = 1 balance."""
    population = state.population
    arrays = (population.particles, population.score, weighed.log_weights, weighed.families)
    return unrest(at_rest(*(np.asarray(array) for array in arrays)))


def _cover_doubts(state: State, weighed: Weighed, problem: Problem) -> list[str]:
    """Whether particles have left the initial law's support, which a law without edges does not have."""
    if not state.memory.has_edge:
        return []
    outside = np.asarray(_log_initial(problem, state.population.particles)) == -np.inf
    share = float(normalised_weights(np.asarray(weighed.log_weights), len(outside)) @ outside)
    if share < _LARGEST_UNCOVERED:
        return []
    return [
        f"{share:.1%} of the particles ended where the initial law has no density, so the evidence is too low by all "
        "that the target has there; start from a law that covers the target"
    ]


@eqx.filter_jit
def _log_initial(problem: Problem, particles: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.vmap(problem.log_initial)(particles)


def _plain_log_weights(state: State, status: Status) -> Array:
    """Weights of a method without weights: equal, and none outside the target's support."""
    alive = state.population.alive if status == Status.COMPLETED else jnp.ones_like(state.population.alive)
    return jnp.where(alive, 0.0, -jnp.inf)


def _status_doubts(run: Run, num_particles: int, options: Options) -> list[str]:
    """How the run ended, if not well, and what to do about it."""
    t = f"t = {float(run.state.clock.t):.4g}"
    where = f"at t = {float(run.fault_t):.4g}"
    kept = f"the particles returned are the last good ones, at {t}"
    culprits = f"{int(run.num_faults)} of {num_particles} particles (the first: {int(run.first_fault)})"
    partial = f"at {t}, so the particles returned are those of p_t and not of the target"
    go_on = "" if options.checkpoint is None else f", and go on from {options.checkpoint.path}"
    match Status(int(run.status)):
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
            steps = int(run.state.num_steps)
            return [f"the step limit of {steps} was reached {partial}; raise the method's max_steps"]
        case Status.EVALUATION_LIMIT:
            return [f"max_evaluations = {options.max_evaluations} was reached {partial}; raise it{go_on}"]
        case Status.TIME_LIMIT:
            return [f"max_seconds had passed {partial}; raise it{go_on or ', or keep the run in a checkpoint'}"]
        case Status.INTERRUPTED:
            remedy = "" if options.checkpoint is None else f"; the same call goes on from {options.checkpoint.path}"
            return [f"interrupted {partial}{remedy}"]
        case _:
            return []


def _support_doubts(state: State, status: Status) -> list[str]:
    if state.weights is not None:
        # Weights of 0 are weights like others, and the effective sample size counts them.
        return []
    outside = int(np.sum(~np.asarray(state.population.alive)))
    if status != Status.COMPLETED or outside == 0:
        return []
    return [f"{outside} particles ended outside the target's support (log-density -inf) and have weight 0"]
