"""The targets of `pgps bench evidence`: those that the field compares samplers on, and what is checked on each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import norm

from pgps import metrics, targets
from pgps.initial import AbstractLaw
from pgps.targets import AbstractPosterior, AbstractTarget

AnyTarget = AbstractTarget | AbstractPosterior
Measure = Callable[[Any, np.ndarray, np.ndarray], float]
"""Takes a target, particles and log-weights."""

# A mode counts as found if it holds more than this share of its true mass.
_FOUND = 0.2


class Outcome(NamedTuple):
    """What a sampler returns for one seed.

    Attributes:
        particles: The particles.
        log_weights: Their log-weights.
        complete: Whether the particles are those of the target.
        log_evidence: The log evidence; None where the sampler gives none, or is not complete.
        log_evidence_error: Its standard error; None where the sampler gives none.
        gradients: Gradients of the target, summed over particles.
        values: Calls of the target without its gradient, summed over particles.
        seconds: How long it took, after compilation.
        warnings: What the sampler itself doubts.
    """

    particles: Float[Array, "n dim"]
    log_weights: Float[Array, " n"]
    complete: bool
    log_evidence: float | None
    log_evidence_error: float | None
    gradients: int
    values: int
    seconds: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """A measurement on weighted particles, and what it should be.

    Attributes:
        name: What is measured.
        measure: Measures it.
        truth: The value under the target.
    """

    name: str
    measure: Measure
    truth: float


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        build: Takes a seed, on which the target may depend, and returns the target and the initial law.
        checks: What is measured besides the log evidence.
        num_particles: How many particles.
        most_seeds: Run no more seeds than this; None runs all.
        has_maxima: Whether ascents can find any: a funnel has its own so far down its neck that they do not.
    """

    build: Callable[[int], tuple[AnyTarget, AbstractLaw]]
    checks: tuple[Check, ...] = ()
    num_particles: int = 1000
    most_seeds: int | None = None
    has_maxima: bool = True


def true_log_evidence(target: AnyTarget) -> float | None:
    """ln Z, exact or from the literature; None where neither is known."""
    return target.log_evidence if isinstance(target, AbstractTarget) else target.reference_log_evidence


def modes_found(target: targets.AbstractMixture, particles: np.ndarray, log_weights: np.ndarray) -> float:
    """How many of a mixture's modes hold more than a fifth of their mass."""
    table = metrics.mode_table(particles, target.means, target.weights, log_weights)
    return float(np.sum(table.mass > _FOUND * np.asarray(target.weights)))


def mass_error(target: targets.AbstractMixture, particles: np.ndarray, log_weights: np.ndarray) -> float:
    """The paper's weight mismatch e."""
    return metrics.weight_mismatch(particles, target.means, target.weights, log_weights=log_weights)


def first_coordinate_distance(target: targets.Funnel, particles: np.ndarray, log_weights: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance of a funnel's first coordinate to its law."""
    weights = metrics.normalised_weights(log_weights, len(particles))
    order = np.argsort(particles[:, 0])
    truth = norm.cdf(particles[order, 0], scale=float(target.scale))
    above = np.cumsum(weights[order])
    # The weighted distribution function jumps at each particle: both sides count.
    return float(max(np.max(np.abs(above - truth)), np.max(np.abs(above - weights[order] - truth))))


def minor_mass(target: targets.ManyWell, particles: np.ndarray, log_weights: np.ndarray) -> float:
    """The mass of the shallower well, averaged over the wells."""
    weights = metrics.normalised_weights(log_weights, len(particles))
    return float(np.mean(weights @ (particles[:, : target.dim : 2] < 0)))


def _above_5(_: Any, particles: np.ndarray, log_weights: np.ndarray) -> float:
    return metrics.score_1(particles, log_weights).mass


def _below_0(_: Any, particles: np.ndarray, log_weights: np.ndarray) -> float:
    return metrics.score_2(particles, log_weights).mass


def _modes(number: int) -> Check:
    return Check("modes found", modes_found, number)


CASES: dict[str, Case] = {
    "weights-8d": Case(
        lambda seed: targets.weight_recovery(jax.random.key(seed)),
        (_modes(4), Check("weight error e", mass_error, 0.0)),
    ),
    "mode-discovery": Case(lambda _: targets.mode_discovery(), (_modes(2), Check("P(x > 5)", _above_5, 0.4993))),
    "false-mode": Case(lambda _: targets.false_mode(), (_modes(2), Check("P(x < 0)", _below_0, 0.0010))),
    "nine-gaussians": Case(lambda _: targets.nine_gaussians(), (_modes(9),)),
    "forty-gaussians": Case(lambda _: targets.forty_gaussians(), (_modes(40),)),
    "forty-gaussians-50d": Case(lambda _: targets.forty_gaussians(50), (_modes(40),)),
    "funnel": Case(
        lambda _: targets.funnel(),
        (Check("KS distance of x_0", first_coordinate_distance, 0.0),),
        has_maxima=False,
    ),
    "many-well": Case(
        lambda _: targets.many_well(), (Check("minor well's mass", minor_mass, targets.ManyWell().minor_mass),)
    ),
    "sonar": Case(lambda _: targets.sonar()),
    "cox": Case(lambda _: targets.log_gaussian_cox(), most_seeds=2),
}
