"""The gallery's examples, run small: what they print is right within its standard error, and the pictures are there."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pgps
from pgps import adjustments, methods, metrics

ROOT = Path(__file__).parents[1]
NAMES = ("mixture", "eight_schools", "label_switching", "network", "oscillator", "polynomial")
# Cheaper to compile than pgps.exact(), with weights as exact.
CHEAP = methods.TemperedSMC(moves=adjustments.HMC(num_leapfrog=4, num_steps=3))


def example(name: str) -> Any:
    """The example's module; it is found in `examples/`, as pyproject.toml tells pytest."""
    return importlib.import_module(name)


def assert_evidence(result: pgps.Result, truth: float) -> None:
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_error


def test_mixture_finds_all_modes_where_a_chain_finds_one():
    mass, shares, result = example("mixture").main(400, method=pgps.exact(scouting=None), num_draws=500)
    truth = np.arange(1, 10) / 45
    # A mode that got few particles by chance has a small error by chance: independent draws' is the least.
    error = np.maximum(mass.mean_error, np.sqrt(truth * (1 - truth) / 400))
    np.testing.assert_array_less(np.abs(mass.mean - truth), 4 * error)
    # An error as large as the mass would let anything pass.
    assert np.all(mass.mean_error < 0.06)
    assert_evidence(result, 0.0)
    assert shares.max() == 1.0


def test_eight_schools_agree_with_nuts():
    scores, results = example("eight_schools").main(600, method=CHEAP, num_draws=500)
    for name, result in results.items():
        np.testing.assert_array_less(np.abs(scores[name]), 4.0)
        found = metrics.moments(result.particles["mu"], result.log_weights, result.families)
        assert found.mean_error < 0.5
        assert 2.0 < found.sd < 5.0
    a, b = results.values()
    gap = a.log_evidence - b.log_evidence
    assert abs(gap) < 4 * np.hypot(a.log_evidence_error, b.log_evidence_error)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_both_labellings_have_half_of_the_mass_where_nuts_finds_one():
    pytest.importorskip("pymc")
    # NumPyro's NUTS, since PyMC's own compiles C for half a minute on a new machine.
    mass, share, scores, _ = example("label_switching").main(500, method=CHEAP, num_draws=500, nuts_sampler="numpyro")
    assert abs(mass.mean - 0.5) < 4 * mass.mean_error
    assert mass.mean_error < 0.1
    assert share in (0.0, 1.0)
    np.testing.assert_array_less(np.abs(scores), 4.0)


def test_networks_are_wrong_no_more_often_than_they_say():
    predictions, labels, _ = example("network").main(10, num_steps=400)
    many = predictions["10 networks"]
    accuracy = metrics.accuracy(many, labels)
    assert accuracy > 0.96 - 4 * np.sqrt(0.96 * 0.04 / len(labels))
    confidence, wrong = many.max(axis=1), many.argmax(axis=1) != labels
    sure = confidence > 0.9
    assert sure.sum() > 200
    error = np.sqrt(np.sum(confidence[sure] * (1 - confidence[sure])))
    assert np.sum(wrong[sure]) < np.sum(1 - confidence[sure]) + 4 * error


def test_the_oscillators_aliases_have_the_masses_of_the_grid():
    mass, masses, log_evidence, result = example("oscillator").main(300, method=CHEAP, num_dampings=150)
    np.testing.assert_array_less(np.abs(mass.mean - masses), 4 * mass.mean_error)
    assert_evidence(result, log_evidence)


def test_the_polynomials_evidence_is_that_of_the_closed_form():
    module = example("polynomial")
    scores, exact, results = module.main(300, method=CHEAP)
    np.testing.assert_array_less(np.abs(scores), 4.0)
    assert all(result.log_evidence_error < 0.3 for result in results)
    assert int(np.argmax([result.log_evidence for result in results])) == int(np.argmax(exact)) == 3


def test_the_command_line_reaches_an_example(tmp_path, monkeypatch):
    calls = []

    def main(num_particles: int = 5, seed: int = 0, out: Path | None = None) -> None:
        """One line."""
        calls.append((num_particles, seed, out))

    monkeypatch.setattr(sys, "argv", ["example.py", "--seed", "3", "--out", str(tmp_path)])
    example("common").run(main)
    assert calls == [(5, 3, tmp_path)]


def test_the_gallery_shows_every_example():
    text = (ROOT / "docs" / "gallery.md").read_text("utf-8")
    assert sorted(NAMES) == sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "common")
    for name in NAMES:
        assert f"python examples/{name}.py --out docs/images" in text
        picture = ROOT / "docs" / "images" / f"{name}.png"
        assert re.search(rf"!\[[^\]]+\]\(images/{picture.name}\)", text)
        assert picture.stat().st_size < 80_000
