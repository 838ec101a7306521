"""Figure 5: training-free PGPS on the target of Figure 1, for alpha in {0, 0.5, 1} and beta in {0.1, 0.5, 1}."""

import numpy as np

from pgps import reporting
from pgps.experiments import figure1
from pgps.experiments.base import AbstractExperiment, Cell, Claim, Findings, Records, sampling_cell
from pgps.recipes import training_free
from pgps.targets import two_modes

ALPHAS = (0.0, 0.5, 1.0)
BETAS = (0.1, 0.5, 1.0)


class Figure5(AbstractExperiment):
    """The influence of alpha and beta."""

    title = "Figure 5: alpha and beta, with training-free PGPS"

    def seeds(self, preset: str) -> tuple[int, ...]:
        """Twenty, as for Figure 1."""
        return tuple(range(20 if preset == "paper" else 2))

    def cells(self, preset: str) -> list[Cell]:
        """The 3 x 3 grid."""
        dt = 0.01 if preset == "paper" else 0.1
        return [
            sampling_cell(
                _name(alpha, beta),
                training_free(alpha, beta, dt=dt, langevin_steps=30, langevin_step_size=figure1.LANGEVIN_STEP_SIZE),
                lambda _: two_modes(),
                figure1.NUM_PARTICLES,
                figure1.measure,
            )
            for alpha in ALPHAS
            for beta in BETAS
        ]

    def findings(self, preset: str, records: Records) -> Findings:
        """Without shrinkage the right mode is found by fewer particles than with it."""
        names = {(alpha, beta): _name(alpha, beta) for alpha in ALPHAS for beta in BETAS}
        right = {key: float(np.mean(records[name].values("right"))) for key, name in names.items()}
        none = right[0.0, 1.0]
        shrunk = {key: value for key, value in right.items() if key[1] < 1}
        best = max(right, key=lambda key: -abs(right[key] - 0.5))
        worst = none == min(right.values())
        better = sum(abs(value - 0.5) < abs(none - 0.5) for value in shrunk.values())
        claims = (
            Claim(
                "no shrinkage (alpha = 0, beta = 1) is the worst",
                f"right mode: {none:.3f} without shrinkage, {min(right.values()):.3f} at the least (truth 0.5)",
                "reproduced" if worst else "partly" if none < np.median(list(right.values())) else "not reproduced",
            ),
            Claim(
                "with shrinkage the right mode is captured much better",
                f"{better} of {len(shrunk)} settings with beta < 1 are nearer to the truth; the nearest is "
                f"alpha = {best[0]:g}, beta = {best[1]:g} with {right[best]:.3f}",
                "reproduced" if better == len(shrunk) else "partly" if better else "not reproduced",
            ),
        )
        rows = [
            (f"{alpha:g}", f"{beta:g}", records[name].text("right"), *records[name].costs[:2])
            for (alpha, beta), name in names.items()
        ]
        head = ("alpha", "beta", "right mode", "iterations", "evaluations per particle")
        panels = [
            figure1.panel(f"alpha = {alpha:g}, beta = {beta:g}", records[name].arrays["particles"])
            for (alpha, beta), name in names.items()
        ]
        return Findings(
            claims=claims,
            tables=(reporting.Table("Share of the right mode, mean and standard error over seeds", head, rows),),
            figure=figure1.draw(panels, columns=3),
            caption="Particles of the first seed over the target's density, for each alpha and beta.",
            notes=(
                "The Langevin step size is not published; 1e-3, as in Figure 1. Larger ones are unstable on modes this "
                "narrow.",
            ),
        )


def _name(alpha: float, beta: float) -> str:
    return f"alpha{alpha:g}-beta{beta:g}"
