"""The choice of alpha and beta by cheap pilot runs.

A pilot run of exact PGPS along each candidate path gives an evidence, its error and its price. A path whose evidence is
significantly lower than another's has lost a part of the target, and is out. Of the others the one is chosen that needs
the fewest gradients for a given error: error^2 times gradients is the least.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree, Scalar

from pgps import _checks
from pgps.initial import AbstractLaw
from pgps.methods.pgps import PGPS
from pgps.paths import LogWeightedShrinkage
from pgps.recipes import exact
from pgps.result import PGPSWarning, Status
from pgps.sample import sample_many

CANDIDATES = ((1.0, 0.3), (1.0, 0.6), (1.0, 1.0), (0.0, 1.0))
"""Pairs of alpha and beta: from a path that finds modes far away to the geometric one, which is cheaper."""

# An evidence lower by so many standard errors is not a matter of chance.
_SIGNIFICANT = 2.0


class Pilot(NamedTuple):
    """What a pilot run along one path gave; errors and gradients are those of its own number of particles."""

    alpha: float
    beta: float
    log_evidence: float
    log_evidence_error: float
    gradients: int

    @property
    def price(self) -> float:
        """Gradients for an error of 1."""
        return self.log_evidence_error**2 * self.gradients


class PathTuning(NamedTuple):
    """The path that was chosen, and the pilots that it was chosen by."""

    path: LogWeightedShrinkage
    pilots: tuple[Pilot, ...]


def tune_path(
    logdensity_fn: Callable[[PyTree], Scalar],
    initial: AbstractLaw | tuple[Callable, Callable],
    *,
    key: Array,
    num_particles: int = 200,
    num_runs: int = 2,
    candidates: Sequence[tuple[float, float]] = CANDIDATES,
    method: PGPS | None = None,
) -> PathTuning:
    """Choose alpha and beta for a density; pass the path on, as in `pgps.exact(path=tuning.path)`.

    All pilots run in one compiled program. They cost as much as a run of `num_particles * num_runs * len(candidates)`
    particles, so that tuning pays where far more particles are to follow.

    Args:
        logdensity_fn: The log-density, as `pgps.sample` takes it.
        initial: Where particles start.
        key: A random key.
        num_particles: Particles of a pilot run.
        num_runs: Pilot runs along each path.
        candidates: Pairs of alpha and beta; the first is taken where no pilot completes.
        method: A method with weights, of which all but alpha and beta is kept; `pgps.exact()` if none is given.
    """
    method = exact() if method is None else method
    _checks.instance("method", method, PGPS, "pgps.exact()")
    if method.weighing is None or not isinstance(method.path, LogWeightedShrinkage):
        raise ValueError("method must have weights and the path LogWeightedShrinkage, got another; use pgps.exact()")
    _checks.whole("num_runs", num_runs, at_least=1)
    if not candidates:
        raise ValueError("candidates must hold at least one pair, got none; as in [(1.0, 0.3), (0.0, 1.0)]")
    paths = [LogWeightedShrinkage(alpha, beta, method.path.center) for alpha, beta in candidates]
    # A pilot's masses are not what it is for.
    methods = [dataclasses.replace(method, path=path, scouting=None) for path in paths for _ in range(num_runs)]
    keys = [*jax.random.split(key, num_runs)] * len(paths)
    with warnings.catch_warnings(action="ignore", category=PGPSWarning):
        # Few particles leave doubts; what they are for is the choice.
        results = sample_many(
            logdensity_fn, initial, keys=keys, num_particles=num_particles, method=methods, progress=False
        )
    pilots = []
    for i, path in enumerate(paths):
        own = results[i * num_runs : (i + 1) * num_runs]
        if all(result.status == Status.COMPLETED for result in own):
            evidences = [result.log_evidence or 0.0 for result in own]
            errors = [result.log_evidence_error or math.inf for result in own]
            gradients = sum(result.num_evaluations.gradients for result in own)
            mean, error = _combined(evidences, errors)
            pilots.append(Pilot(path.alpha, path.beta, mean, error, int(gradients)))
    if not pilots:
        warnings.warn("no pilot run completed, so that the first path is taken unseen", PGPSWarning, stacklevel=2)
        return PathTuning(paths[0], ())
    best = choose(pilots)
    return PathTuning(LogWeightedShrinkage(best.alpha, best.beta, method.path.center), tuple(pilots))


def choose(pilots: Sequence[Pilot]) -> Pilot:
    """The cheapest of the pilots that have lost nothing which another one found."""

    def has_lost(pilot: Pilot) -> bool:
        return any(
            other.log_evidence - pilot.log_evidence
            > _SIGNIFICANT * math.hypot(other.log_evidence_error, pilot.log_evidence_error)
            for other in pilots
        )

    return min((pilot for pilot in pilots if not has_lost(pilot)), key=lambda pilot: pilot.price)


def _combined(evidences: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """The mean of independent estimates, and its error: as reported, or as they differ, whichever is larger."""
    num, mean = len(evidences), sum(evidences) / len(evidences)
    reported = math.sqrt(sum(error**2 for error in errors)) / num
    spread = math.sqrt(sum((evidence - mean) ** 2 for evidence in evidences) / (num * max(num - 1, 1)))
    return mean, max(reported, spread)
