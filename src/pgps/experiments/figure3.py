"""Figure 3: mode discovery (a, b) and false mode discovery (c, d) in one dimension.

Mode discovery: N(0, 3^2) -> 0.5 N(0, 1) + 0.5 N(8, 1), score_1 = P(x > 5).
Sensitivity: N(0, 2^2) -> 0.001 N(-5, 1) + 0.999 N(5, 1), score_2 = P(x < 0).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar
from scipy import stats

from pgps import fields, methods, metrics, reporting
from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Records, sampling_cell, standard_error
from pgps.initial import AbstractLaw
from pgps.recipes import paper
from pgps.reporting.figures import COLORS, INK
from pgps.result import Result
from pgps.targets import AbstractTarget, GaussianMixture, false_mode, mode_discovery

SETTINGS = {"A": (0.0, 1.0, 0), "B": (1.0, 0.8, 0), "C": (0.0, 1.0, 10), "D": (1.0, 0.8, 10)}
"""alpha, beta and the number of Langevin steps after each flow step."""

STEP_SIZE = 1e-2
BASELINES = {"langevin": "LD", "svgd": "SVGD", "pfg": "PFG"}
# One bandwidth for every method, in units of the target's own width: the published plots use two.
_BANDWIDTH = 0.3


class Sizes(NamedTuple):
    """How much a preset computes."""

    psis: tuple[float, ...]
    num_particles: int
    svgd_particles: int
    max_training_steps: int
    num_steps: int
    first_training_steps: int


SIZES = {
    "paper": Sizes((0.5, 0.1, 0.05, 0.01), 5000, 1000, 1000, 5000, 1000),
    "smoke": Sizes((0.5,), 300, 100, 20, 100, 20),
}


@dataclass(frozen=True)
class Score:
    """The score of one of the two problems.

    Attributes:
        name: Its name in the paper.
        problem: The target and the initial law.
        share: The score of a result, with its standard error.
        observe: The same, compiled.
        truth: What it is under the target.
        close: How near to the truth counts as close.
    """

    name: str
    problem: Callable[[], tuple[GaussianMixture, AbstractLaw]]
    share: Callable[..., metrics.Share]
    observe: Callable[[Float[Array, "n 1"]], dict[str, Scalar]]
    truth: float
    close: float


# P(x > 5) = (P(N(0,1) > 5) + P(N(8,1) > 5)) / 2, and P(x < 0) = 0.001 P(N(-5,1) < 0) + 0.999 P(N(5,1) < 0).
SCORE_1 = Score(
    "score_1",
    mode_discovery,
    metrics.score_1,
    lambda x: {"score": jnp.mean(x > 5.0)},
    float(0.5 * stats.norm.sf(5) + 0.5 * stats.norm.sf(-3)),
    0.05,
)
SCORE_2 = Score(
    "score_2",
    false_mode,
    metrics.score_2,
    lambda x: {"score": jnp.mean(x < 0.0)},
    float(0.001 * stats.norm.cdf(5) + 0.999 * stats.norm.cdf(-5)),
    0.001,
)


class Figure3(AbstractExperiment):
    """Scores against iterations, and densities, for one of the two problems."""

    def __init__(self, title: str, score: Score, claims: Callable[[Score, Records, tuple[float, ...]], list[Claim]]):
        self.title = title
        self.score = score
        self._claims = claims

    def seeds(self, preset: str) -> tuple[int, ...]:
        """Three."""
        return tuple(range(3 if preset == "paper" else 2))

    def cells(self, preset: str) -> list[Cell]:
        """PGPS in settings A-D for each psi, the baselines, and tempered SMC, which the paper leaves out."""
        size = SIZES[preset]
        many, few = size.num_particles, size.svgd_particles
        samplers: dict[str, tuple[methods.AbstractMethod, int]] = {
            "langevin": (methods.Langevin(STEP_SIZE, size.num_steps), many),
            "svgd": (methods.SVGD(STEP_SIZE, size.num_steps), few),
            "pfg": (
                methods.PFG(STEP_SIZE, size.num_steps, fields.MLP(64), first_training_steps=size.first_training_steps),
                many,
            ),
            "smc": (methods.TemperedSMC(), many),
        }
        for psi in size.psis:
            for letter, (alpha, beta, steps) in SETTINGS.items():
                method = paper(
                    alpha,
                    beta,
                    psi,
                    max_training_steps=size.max_training_steps,
                    langevin_steps=steps,
                    langevin_step_size=STEP_SIZE,
                )
                samplers[_name(letter, psi)] = (method, many)
        return [
            sampling_cell(
                name,
                method,
                lambda _: self.score.problem(),
                num,
                self._measure,
                self.score.observe if name in BASELINES else None,
            )
            for name, (method, num) in samplers.items()
        ]

    def _measure(self, result: Result, target: AbstractTarget) -> dict[str, float]:
        mass, error = self.score.share(result.particles, result.log_weights)
        return {"score": mass, "score_error": error}

    def findings(self, preset: str, records: Records) -> Findings:
        """The claims, a table of all settings, and both panels."""
        psis = SIZES[preset].psis
        head = ("method", self.score.name, "iterations", "evaluations per particle", "training steps")
        rows = [(name, records[key].text("score", 4), *records[key].costs) for key, name in BASELINES.items()]
        rows += [
            (f"PGPS ({letter}), psi {psi:g}", records[key].text("score", 4), *records[key].costs)
            for letter in SETTINGS
            for psi in psis
            for key in [_name(letter, psi)]
        ]
        rows += [
            ("tempered SMC (not in the paper)", records["smc"].text("score", 4), *records["smc"].costs),
            ("truth", f"{self.score.truth:.4f}", "", "", ""),
        ]
        return Findings(
            claims=self._claims(self.score, records, psis),
            tables=(reporting.Table(f"{self.score.name}, mean and standard error over seeds", head, rows),),
            figure=_draw(self.score, records, psis),
            caption=(
                f"Left: {self.score.name} against iterations (flow and Langevin steps); PGPS by setting and psi, with "
                "larger marks for larger psi. Right: densities of the first seed's particles, PGPS at its smallest psi."
            ),
            notes=(
                "Each density is a kernel estimate of the same bandwidth; the published figure uses two.",
                f"SVGD has {SIZES[preset].svgd_particles:,} particles, the others {SIZES[preset].num_particles:,}.",
                "SVGD and PFG are the methods as their authors define them: the released SVGD has half of the kernel's "
                "gradient, and the released PFG moves at half speed.",
            ),
        )


def claims_mode(score: Score, records: Records, psis: tuple[float, ...]) -> list[Claim]:
    """Section 5.1.1: PGPS recovers the right mode faster and better; the benchmarks fail."""
    means = _means(records, psis)
    close = [name for name, mean in means.items() if abs(mean - score.truth) < score.close]
    baselines = _baselines(records)
    iterations = [float(np.mean(records[_name(*key)].values("iterations"))) for key in means]
    faster = max(iterations) < np.mean(records["langevin"].values("iterations"))
    return [
        Claim(
            f"PGPS's {score.name} is close to the true {score.truth:.3f}",
            _ranges(means) + f"; within {score.close} of the truth: {len(close)} of {len(means)}",
            _some(len(close), len(means)),
            "With shrinkage (B, D) the far mode gets nearly its share; without it (A, C) about half of that.",
        ),
        Claim(
            "LD, SVGD and PFG fail to discover the right mode",
            ", ".join(f"{name} {value:.3f}" for name, value in baselines.items()),
            "reproduced" if max(baselines.values()) < 0.5 * score.truth else "not reproduced",
        ),
        Claim(
            "PGPS recovers it faster",
            f"{min(iterations):,.0f}-{max(iterations):,.0f} iterations, the benchmarks "
            f"{records['langevin'].count('iterations')}",
            "reproduced" if faster else "partly",
            "In iterations and target evaluations; the field's training costs more than either.",
        ),
    ]


def claims_sensitivity(score: Score, records: Records, psis: tuple[float, ...]) -> list[Claim]:
    """Section 5.1.2: the benchmarks focus on a negligible mode; PGPS is less sensitive."""
    means = _means(records, psis)
    close = [name for name, mean in means.items() if abs(mean - score.truth) < score.close]
    baselines = _baselines(records)
    ratio = max(means.values()) / min(baselines.values())
    factors = [mean / score.truth for mean in means.values()]
    return [
        Claim(
            f"the benchmarks have a relatively large {score.name}",
            ", ".join(f"{name} {value:.3f}" for name, value in baselines.items()),
            "reproduced" if min(baselines.values()) > 0.1 else "not reproduced",
        ),
        Claim(
            "PGPS is less sensitive than the benchmarks",
            _ranges(means) + f"; at most {ratio:.2f} of the best benchmark's",
            "reproduced" if ratio < 0.5 else "not reproduced",
        ),
        Claim(
            f"PGPS's {score.name} is close to the desired {score.truth:.3f}",
            f"{min(factors):.0f} to {max(factors):.0f} times the truth",
            _some(len(close), len(means)),
            "The false mode keeps some of the initial law's mass there; shrinkage makes it worse.",
        ),
    ]


def _means(records: Records, psis: tuple[float, ...]) -> dict[tuple[str, float], float]:
    keys = [(letter, psi) for letter in SETTINGS for psi in psis]
    return {key: float(np.mean(records[_name(*key)].values("score"))) for key in keys}


def _baselines(records: Records) -> dict[str, float]:
    return {name: float(np.mean(records[key].values("score"))) for key, name in BASELINES.items()}


def _ranges(means: dict[tuple[str, float], float]) -> str:
    texts = []
    for letter in SETTINGS:
        values = [mean for (setting, _), mean in means.items() if setting == letter]
        texts.append(f"{letter} {min(values):.3f}-{max(values):.3f}")
    return ", ".join(texts)


def _some(count: int, total: int):
    return "reproduced" if count == total else "partly" if count else "not reproduced"


def _name(letter: str, psi: float) -> str:
    return f"pgps-{letter}-psi{psi:g}"


def _draw(score: Score, records: Records, psis: tuple[float, ...]):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    greys = ("#adb5bd", "#868e96", "#495057")
    styles = ("-", "--", ":")
    for (key, name), color, style in zip(BASELINES.items(), greys, styles, strict=True):
        values = np.asarray(records[key].arrays["score"], float)
        iterations = np.arange(1, values.shape[1] + 1)
        left.plot(iterations, values.mean(axis=0), color=color, linestyle=style, linewidth=1.8, label=name)
    for letter, color in zip(SETTINGS, COLORS, strict=True):
        for k, psi in enumerate(psis):
            record = records[_name(letter, psi)]
            scores, x = record.values("score"), float(np.mean(record.values("iterations")))
            label = f"PGPS ({letter})" if k == 0 else None
            error = 2 * standard_error(scores) if len(scores) > 1 else None
            size = 9 - 1.5 * k
            left.errorbar(
                x, np.mean(scores), error, fmt="o", color=color, markersize=size, capsize=2, alpha=0.9, label=label
            )
    left.axhline(score.truth, color="#c92a2a", linestyle="--", linewidth=1.2, label="truth")
    left.set_xscale("log")
    left.set_xlabel("iterations", color=INK)
    left.set_ylabel(score.name, color=INK)

    target, _ = score.problem()
    x = np.linspace(-9.0, 13.0, 600)
    density = np.exp(np.asarray(jax.vmap(target)(jnp.asarray(x)[:, None])))
    right.fill_between(x, density, color="#f1f3f5", label="target")
    for (key, name), color, style in zip(BASELINES.items(), greys, styles, strict=True):
        right.plot(x, _estimate(records[key].arrays["particles"], x), color=color, linestyle=style, label=name)
    for letter, color in zip(SETTINGS, COLORS, strict=True):
        particles = records[_name(letter, psis[-1])].arrays["particles"]
        right.plot(x, _estimate(particles, x), color=color, linewidth=1.4, label=f"PGPS ({letter})")
    right.set_xlabel("x", color=INK)
    right.set_ylabel("density", color=INK)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9, color=INK, labelcolor=INK)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _estimate(particles: np.ndarray, x: np.ndarray) -> np.ndarray:
    return stats.norm.pdf(x[:, None], particles[:, 0], _BANDWIDTH).mean(axis=1)
