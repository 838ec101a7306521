"""`pgps demo`: the paper's Figure 1 for one seed, with an animation of the particles along t and a report.

The panels are exact samples, Langevin dynamics (LD) after 100 and after 4,000 steps, and PGPS.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Scalar

from pgps import methods, reporting
from pgps.density import Problem
from pgps.experiments.figure1 import LANGEVIN_STEP_SIZE, LANGEVIN_STEPS, METHOD, NUM_PARTICLES, draw, panel
from pgps.result import Result, Status
from pgps.run import Snapshot
from pgps.sample import sample
from pgps.targets import two_modes

TABLE_HEAD = ("panel", "left", "right", "iterations", "evaluations", "seconds")

_ANIMATION_LIMITS = reporting.Limits(-0.8, 1.75, -0.8, 0.8)


@dataclass(frozen=True)
class Draws:
    """The particles of one panel.

    Attributes:
        name: What was sampled, and how.
        particles: The particles.
        modes: Each particle's mode: 0 is the left one, 1 the right one.
        result: The run that they come from; None for exact samples.
    """

    name: str
    particles: Float[np.ndarray, "n 2"]
    modes: Int[np.ndarray, " n"]
    result: Result | None = None

    @classmethod
    def of(cls, name: str, particles: Float[Array, "n 2"], result: Result | None = None) -> "Draws":
        """Assign each particle to the nearer mode."""
        target, _ = two_modes()
        return cls(name, np.asarray(particles), np.asarray(target.nearest_mode(particles)), result)

    @property
    def shares(self) -> tuple[float, float]:
        """The share of particles in the left and in the right mode; the truth is one half each."""
        right = float(np.mean(self.modes))
        return 1 - right, right

    @property
    def shares_text(self) -> str:
        """Both shares, for people."""
        left, right = self.shares
        return f"{left:.1%} left, {right:.1%} right"

    @property
    def iterations(self) -> int | None:
        """Iterations as the paper counts them: flow steps and Langevin steps alike."""
        if self.result is None:
            return None
        trace = self.result.trace
        return len(trace["t"]) + int(np.sum(trace.get("adjustment_steps", 0)))

    @property
    def evaluations(self) -> int | None:
        """Calls of the log-density, with or without its gradient, summed over particles."""
        return None if self.result is None else int(self.result.num_evaluations.total)

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds, compilation included."""
        return None if self.result is None else self.result.provenance["seconds"]


@dataclass(frozen=True)
class Figure1:
    """The four panels, and (t, PGPS's particles) at t = 0 and after each step along t."""

    target: Draws
    langevin_early: Draws
    langevin_late: Draws
    pgps: Draws
    frames: tuple[tuple[float, Float[np.ndarray, "n 2"]], ...]

    @property
    def panels(self) -> tuple[Draws, Draws, Draws, Draws]:
        """The panels in the paper's order."""
        return self.target, self.langevin_early, self.langevin_late, self.pgps

    @property
    def runs(self) -> dict[str, Result]:
        """The runs behind the panels, by name."""
        return {panel.name: panel.result for panel in self.panels if panel.result is not None}

    @property
    def warnings(self) -> list[str]:
        """What the runs themselves say should be doubted."""
        return [f"{name}: {warning}" for name, result in self.runs.items() for warning in result.warnings]

    def table(self) -> list[tuple[str, ...]]:
        """One row of texts per panel; `TABLE_HEAD` names the columns."""
        return [
            (
                panel.name,
                *(f"{share:.3f}" for share in panel.shares),
                *("" if count is None else f"{count:,}" for count in (panel.iterations, panel.evaluations)),
                "" if panel.seconds is None else f"{panel.seconds:.1f}",
            )
            for panel in self.panels
        ]


def run(key: Array, *, progress: bool | None = None, announce: Callable[[str], None] | None = None) -> Figure1:
    """Make the figure's data.

    Args:
        key: A random key.
        progress: Whether to show progress bars; None shows them on a terminal.
        announce: Called with the name of each run before it starts.
    """
    key_target, key_langevin, key_pgps = jax.random.split(key, 3)
    target, initial = two_modes()
    frames = []

    def record(snapshot: Snapshot) -> None:
        frames.append((snapshot.t, np.asarray(snapshot.particles)))

    def draw(name: str, key: Array, method: methods.AbstractMethod, callback: Callable | None = None) -> Draws:
        if announce is not None:
            announce(name)
        settings: dict[str, Any] = {"num_particles": NUM_PARTICLES, "method": method, "progress": progress}
        result = sample(target, initial, key=key, callback=callback, **settings)
        if result.status == Status.INTERRUPTED:
            raise KeyboardInterrupt
        return Draws.of(name, result.particles, result)

    # With the same key the first run is the beginning of the second.
    early, late = (
        draw(f"LD after {steps:,} steps", key_langevin, methods.Langevin(LANGEVIN_STEP_SIZE, steps))
        for steps in LANGEVIN_STEPS
    )
    pgps = draw("PGPS", key_pgps, METHOD, record)
    exact = Draws.of("Target", target.sample(key_target, NUM_PARTICLES))
    return Figure1(exact, early, late, pgps, tuple(frames))


def judge(figure: Figure1) -> reporting.Verdict:
    """Say which modes were found. A mode counts as found if it holds at least half of its true share."""
    if any(result.status != Status.COMPLETED for result in figure.runs.values()):
        return reporting.Verdict("bad", "Not usable.", "A run stopped before its end: see the warnings.")
    compared = (figure.pgps, figure.langevin_late)
    texts = [f"{draws.name} {_found(draws)} ({draws.shares_text})." for draws in compared]
    chance = 0.5 / NUM_PARTICLES**0.5
    texts.append(f"The truth is one half each; the standard error of independent samples is {chance:.1%}.")
    if min(figure.pgps.shares) < 0.25:
        return reporting.Verdict("bad", "PGPS missed a mode.", " ".join(texts))
    if abs(figure.pgps.shares[0] - 0.5) > 2 * chance:
        return reporting.Verdict("care", "Both modes found, but not their exact weights.", " ".join(texts))
    return reporting.Verdict("good", "Both modes found.", " ".join(texts))


def _found(draws: Draws) -> str:
    missed = [side for side, share in zip(("left", "right"), draws.shares, strict=True) if share < 0.25]
    return f"missed the {missed[0]} mode" if missed else "found both modes"


def save(figure: Figure1, folder: Path, *, asked: str, seed: int | None = None) -> Path:
    """Write everything into a new or empty folder; returns the report's path.

    Args:
        figure: The figure's data.
        folder: The folder. It gets the PGPS run (`result.json`, `particles.npz`), `figure1.png`,
            `figure1.svg`, `figure1.json`, `animation.gif` and `report.html`.
        asked: The command that was run, to be shown in the report.
        seed: The seed of the key, if there was one.
    """
    picture = _draw(figure)
    images = {f"figure1.{kind}": reporting.encode(picture, kind) for kind in ("png", "svg")}
    images["animation.gif"] = _animate(figure)
    record = _record(figure, asked, seed)
    page = reporting.render(_report(figure, record, images))

    figure.runs[figure.pgps.name].save(folder)
    for name, data in images.items():
        (folder / name).write_bytes(data)
    (folder / "figure1.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _draw(figure: Figure1):
    return draw([panel(draws.name, draws.particles) for draws in figure.panels], columns=2)


def _animate(figure: Figure1) -> bytes:
    problem = Problem.of(*two_modes())

    @jax.jit
    def path_grid(t: Scalar) -> Float[Array, "num num"]:
        return reporting.density_grid(lambda x: METHOD.path.logdensity(t, x, problem), _ANIMATION_LIMITS)

    frames = [
        reporting.Frame(
            f"t = {t:.3f}, step {number} of {len(figure.frames) - 1}",
            particles,
            np.asarray(path_grid(jnp.asarray(t))),
        )
        for number, (t, particles) in enumerate(figure.frames)
    ]
    return reporting.animate(frames, figure.pgps.modes, np.asarray(path_grid(jnp.asarray(1.0))), _ANIMATION_LIMITS)


def _record(figure: Figure1, asked: str, seed: int | None) -> dict[str, Any]:
    provenance = figure.runs[figure.pgps.name].provenance
    panels = {
        draws.name: {
            "shares": dict(zip(("left", "right"), draws.shares, strict=True)),
            "iterations": draws.iterations,
            "evaluations": draws.evaluations,
            "seconds": draws.seconds,
            "status": None if draws.result is None else draws.result.status.name,
            "method": None if draws.result is None else draws.result.provenance["method"],
        }
        for draws in figure.panels
    }
    return {
        "asked": asked,
        "seed": seed,
        "num_particles": NUM_PARTICLES,
        "panels": panels,
        "warnings": figure.warnings,
        **{name: provenance[name] for name in ("initial", "dtype", "device", "created", "versions")},
    }


def _report(figure: Figure1, record: dict[str, Any], images: dict[str, bytes]) -> reporting.Report:
    result = figure.runs[figure.pgps.name]
    still = reporting.Image(
        images["figure1.png"],
        "png",
        "Particles over the target's density. Contours: one, two and three standard deviations of a mode.",
        "; ".join(f"{draws.name}: {draws.shares_text}" for draws in figure.panels),
    )
    moving = reporting.Image(
        images["animation.gif"],
        "gif",
        "PGPS along t. Colours: where a particle ends; shading: the path's law; contours: the target.",
        "Particles move from the origin to both modes as the path's law unfolds",
    )
    return reporting.Report(
        title="Figure 1: Langevin dynamics and PGPS on two modes",
        asked=record["asked"],
        verdict=judge(figure),
        facts={
            "Status": result.status.name.lower(),
            "Particles": f"{NUM_PARTICLES}",
            "Left / right": "{:.1%} / {:.1%}".format(*figure.pgps.shares),
            "Iterations": f"{figure.pgps.iterations:,}",
            "Evaluations": f"{figure.pgps.evaluations:,}",
            "Seconds": f"{figure.pgps.seconds:.1f}",
        },
        warnings=figure.warnings,
        tables=(reporting.Table("Share of particles in each mode, and what it cost", TABLE_HEAD, figure.table()),),
        images=(still, moving),
        text=result.summary(),
        versions=record["versions"],
        settings=record,
    )
