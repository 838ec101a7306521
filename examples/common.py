"""What the examples share: a command line, pictures, and the comparison with chains of NUTS."""

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pgps.metrics import Moments

COLORS = ("#1864ab", "#d9480f", "#2b8a3e")


def run(main: Callable[..., Any]) -> None:
    """Call an example with what the command line says, and with its own defaults otherwise."""
    defaults = inspect.signature(main).parameters
    parser = argparse.ArgumentParser(description=inspect.getdoc(main))
    for flag, name in (("--particles", "num_particles"), ("--seed", "seed")):
        parser.add_argument(flag, dest=name, type=int, default=defaults[name].default, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the picture into this folder")
    main(**vars(parser.parse_args()))


def panels(num: int, width: float = 4.0, height: float = 3.2) -> tuple[Figure, list[Any]]:
    """A figure with some panels side by side."""
    figure = Figure(figsize=(width * num, height), layout="constrained")
    axes = list(figure.subplots(1, num, squeeze=False).flat)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, out: Path, name: str) -> None:
    """Write a picture into a folder, which is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=100)


def chain_moments(draws: np.ndarray) -> Moments:
    """Moments over chains, with errors from the effective sample sizes of the draws and of their squares."""
    from numpyro.diagnostics import effective_sample_size

    def mean(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x.mean(axis=(0, 1)), x.std(axis=(0, 1)) / np.sqrt(effective_sample_size(x))

    m, m_error = mean(draws)
    variance, variance_error = mean((draws - m) ** 2)
    return Moments(m, m_error, np.sqrt(variance), variance_error / (2 * np.sqrt(variance)))


def z_scores(a: Moments, b: Moments) -> np.ndarray:
    """By how many standard errors, those of both together, the means (first row) and the deviations are apart."""
    return np.array(
        [(a.mean - b.mean) / np.hypot(a.mean_error, b.mean_error), (a.sd - b.sd) / np.hypot(a.sd_error, b.sd_error)]
    )
