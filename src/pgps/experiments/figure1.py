"""Figure 1: two modes, of which Langevin dynamics (LD) finds the near one and PGPS finds both.

Target: an equal mixture of N((1, 0), 0.05^2 I) and N((1.5, 0), 0.05^2 I). Initial law: N(0, 0.1 I). 200 particles.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pgps import methods, reporting
from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Records, sampling_cell
from pgps.recipes import paper
from pgps.result import Result
from pgps.targets import AbstractMixture, AbstractTarget, two_modes

NUM_PARTICLES = 200
LANGEVIN_STEP_SIZE = 1e-3
LANGEVIN_STEPS = (100, 4000)
LIMITS = reporting.Limits(0.75, 1.75, -0.3, 0.3)


def make_method(max_training_steps: int = 1000) -> methods.PGPS:
    """PGPS as in the figure."""
    return paper(
        alpha=0.0,
        beta=0.1,
        psi=0.05,
        width=64,
        learning_rate=1e-1,
        max_training_steps=max_training_steps,
        threshold=0.0,
        langevin_steps=10,
        langevin_step_size=LANGEVIN_STEP_SIZE,
    )


METHOD = make_method()


class Figure1(AbstractExperiment):
    """The illustrative example."""

    title = "Figure 1: Langevin dynamics and PGPS on two modes"

    def seeds(self, preset: str) -> tuple[int, ...]:
        """Twenty, since a single run's share of 200 particles has an error of 0.035."""
        return tuple(range(20 if preset == "paper" else 2))

    def cells(self, preset: str) -> list[Cell]:
        """LD at both numbers of steps, and PGPS."""
        early, late = LANGEVIN_STEPS if preset == "paper" else (10, 100)
        samplers = {
            "langevin-early": methods.Langevin(LANGEVIN_STEP_SIZE, early),
            "langevin-late": methods.Langevin(LANGEVIN_STEP_SIZE, late),
            "pgps": METHOD if preset == "paper" else make_method(max_training_steps=10),
        }
        return [
            sampling_cell(name, method, lambda _: two_modes(), NUM_PARTICLES, measure)
            for name, method in samplers.items()
        ]

    def findings(self, preset: str, records: Records) -> Findings:
        """LD holds nearly all particles in the left mode; PGPS has both."""
        langevin, pgps = records["langevin-late"], records["pgps"]
        missed = np.mean(langevin.values("right"))
        left = pgps.values("left")
        both = np.mean(np.minimum(left, 1 - left) >= 0.25)
        claims = (
            Claim(
                "LD misses the right mode, also after 4,000 iterations",
                f"right mode: {langevin.text('right')} after {langevin.count('iterations')} (truth 0.5)",
                "reproduced" if missed < 0.1 else "not reproduced",
            ),
            Claim(
                "PGPS finds both modes in 650 iterations",
                f"left mode: {pgps.text('left')}, in {left.min():.2f}-{left.max():.2f} (truth 0.5; released code "
                f"0.60-0.66), in {pgps.count('iterations')} iterations",
                "reproduced" if both > 0.9 else "partly" if both > 0.5 else "not reproduced",
                "Both modes are found, in unequal parts: a bias towards the near mode is left.",
            ),
        )
        rows = [
            (name, records[key].text("left"), records[key].text("right"), *records[key].costs)
            for key, name in (("langevin-early", "LD, early"), ("langevin-late", "LD, late"), ("pgps", "PGPS"))
        ]
        head = ("method", "left mode", "right mode", "iterations", "evaluations per particle", "training steps")
        return Findings(
            claims=claims,
            tables=(reporting.Table("Share of particles in each mode, mean ± standard error over seeds", head, rows),),
            figure=_draw(records),
            caption="Particles of the first seed over the target's density: exact samples, LD, PGPS.",
        )


def measure(result: Result, target: AbstractTarget) -> dict[str, float]:
    """The shares of the left and the right mode."""
    assert isinstance(target, AbstractMixture)
    right = float(np.mean(np.asarray(target.nearest_mode(result.particles))))
    return {"left": 1 - right, "right": right}


def panel(title: str, particles: np.ndarray) -> reporting.Panel:
    """Particles over the target, coloured by their mode, with the modes' shares."""
    modes = np.asarray(two_modes()[0].nearest_mode(jnp.asarray(particles)))
    right = float(np.mean(modes))
    return reporting.Panel(title, f"{1 - right:.1%} left, {right:.1%} right", particles, modes)


def draw(panels: list[reporting.Panel], columns: int):
    """Panels over the target's density."""
    limits = LIMITS.covering(np.concatenate([panel.particles for panel in panels]))
    density = np.asarray(reporting.density_grid(two_modes()[0], limits))
    return reporting.draw_panels(panels, density, limits, columns)


def _draw(records: Records):
    exact = np.asarray(two_modes()[0].sample(jax.random.key(0), NUM_PARTICLES))
    steps = {key: int(records[key].rows[0]["iterations"]) for key in ("langevin-early", "langevin-late")}
    named = [(f"LD after {count:,} steps", records[key].arrays["particles"]) for key, count in steps.items()]
    named = [("Target", exact), *named, ("PGPS", records["pgps"].arrays["particles"])]
    return draw([panel(title, particles) for title, particles in named], columns=2)
