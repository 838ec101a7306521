"""Classification by Bayesian networks: the methods, with sizes that suit n rows, and what is measured on a test part.

Langevin-type methods take steps of size c / n: the log-likelihood grows with n, so that c is the learning rate of the
mean loss. SVGD divides its drive by the number of particles N, of which far-apart ones feel about two: its step is
c N / (2 n).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from pgps import methods, metrics, trainers
from pgps.fields import MLP
from pgps.methods import AbstractMethod
from pgps.recipes import paper, training_free

HIDDEN = 32
FIELD_WIDTH = 128
# c, the learning rate of the mean loss.
RATE = 0.2
# Time steps: dt is 0.02 in all of the paper's experiments, and Langevin steps come at multiples of 0.1.
_RUNGS = 10


class Sizes(NamedTuple):
    """How long methods run: iterations as the paper counts them, but for PGPS's few flow steps."""

    iterations: int = 4000
    training_steps: int = 100
    first_pfg_training_steps: int = 1000

    @property
    def final_steps(self) -> int:
        """Langevin steps at t = 1: a quarter of all."""
        return self.iterations // 4

    @property
    def rung_steps(self) -> int:
        """Langevin steps at each multiple of 0.1."""
        return (self.iterations - self.final_steps) // _RUNGS


class Scale(NamedTuple):
    """What a method's steps are scaled by."""

    num_rows: int
    num_particles: int
    rate: float = RATE


def pgps(scale: Scale, sizes: Sizes, alpha: float = 0.0, beta: float = 1.0) -> AbstractMethod:
    """PGPS as in the paper's BNN experiments: flow steps of 0.02 whatever the field's size."""
    return paper(
        alpha,
        beta,
        1e5,
        width=FIELD_WIDTH,
        learning_rate=1e-3,
        max_training_steps=sizes.training_steps,
        langevin_steps=sizes.rung_steps,
        langevin_step_size=scale.rate / scale.num_rows,
        langevin_every=1 / _RUNGS,
        final_langevin_steps=sizes.final_steps,
    )


def pgps_free(scale: Scale, sizes: Sizes, alpha: float = 0.0, beta: float = 1.0) -> AbstractMethod:
    """Training-free PGPS."""
    return training_free(
        alpha,
        beta,
        dt=1 / _RUNGS,
        langevin_steps=sizes.rung_steps,
        langevin_step_size=scale.rate / scale.num_rows,
        final_langevin_steps=sizes.final_steps,
    )


def svgd(scale: Scale, sizes: Sizes) -> AbstractMethod:
    """SVGD with the median heuristic."""
    return methods.SVGD(scale.rate * scale.num_particles / (2 * scale.num_rows), sizes.iterations)


def sgld(scale: Scale, sizes: Sizes) -> AbstractMethod:
    """One chain, whose last states are the particles."""
    return methods.SGLD(scale.rate / scale.num_rows, sizes.iterations + scale.num_particles, num_chains=1)


def pfg(scale: Scale, sizes: Sizes) -> AbstractMethod:
    """PFG with five training steps per iteration."""
    return methods.PFG(
        scale.rate / scale.num_rows,
        sizes.iterations,
        MLP(FIELD_WIDTH),
        trainers.Gradient(1e-3, 5, None, loss=methods.functional_gradient),
        first_training_steps=sizes.first_pfg_training_steps,
    )


METHODS: dict[str, Callable[..., AbstractMethod]] = {
    "pgps": pgps,
    "training-free": pgps_free,
    "svgd": svgd,
    "sgld": sgld,
    "pfg": pfg,
}
"""By the name that the command line has for them; the first two follow a path, and take alpha and beta."""

FOLLOW_A_PATH = ("pgps", "training-free")


def measure(probabilities: Float[Array | np.ndarray, "n classes"], labels: Int[np.ndarray, " n"]) -> dict[str, float]:
    """Accuracy, negative log-likelihood, Brier score and both calibration errors of a prediction."""
    return {
        "accuracy": metrics.accuracy(probabilities, labels),
        "nll": metrics.negative_log_likelihood(probabilities, labels),
        "brier": metrics.brier_score(probabilities, labels),
        "ece": metrics.calibration_error(probabilities, labels),
        "classwise_ece": metrics.classwise_calibration_error(probabilities, labels),
    }
