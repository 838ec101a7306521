"""Calibration: the benchmark runs in its smoke preset, and would see a sampler that is wrong."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from pgps.benchmarks import calibration
from pgps.cli import main


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_smoke(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "calibration", "--preset", "smoke", "--out", str(out)]) == 0
    record = json.loads((out / "result.json").read_text())
    preset = calibration.PRESETS["smoke"]
    assert len(record["ranks"]) == 3
    for row in record["ranks"]:
        assert sum(row["counts"]) == preset.replications
        assert row["p_value"] > 1e-4
    # Of 16 a nominal 95% or more: fewer than 11 have a probability of 1e-4.
    assert record["evidence"]["covered"] >= 11 / 16
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "report.html")


def test_the_evidence_is_the_integral_of_the_joint_density():
    _, [posterior] = calibration.simulate(1, np.random.default_rng(3))
    # On a grid: the trapezoidal rule converges faster than any power of its spacing for a Gaussian.
    axis = np.linspace(-6, 6, 61)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    prior = -0.5 * np.sum(grid**2, -1) - 1.5 * np.log(2 * np.pi)
    z = (np.asarray(posterior.data) - grid @ calibration._DESIGN.T) / calibration._NOISE
    joint = prior + np.sum(-0.5 * z**2 - np.log(calibration._NOISE * np.sqrt(2 * np.pi)), -1)
    total = np.exp(joint)
    for _ in range(3):
        total = integrate.trapezoid(total, axis, axis=-1)
    assert posterior.log_evidence() == pytest.approx(np.log(total), abs=1e-5)
    np.testing.assert_allclose(posterior(jnp.asarray(grid[30, 40, 20])), joint[30, 40, 20], rtol=1e-5)


@pytest.mark.parametrize(("width", "calibrated"), [(1.0, True), (0.6, False), (1.6, False)])
def test_ranks_see_posteriors_of_the_wrong_width(width, calibrated):
    rng = np.random.default_rng(0)
    truths, draws = rng.standard_normal(400), width * rng.standard_normal((400, 31))
    test = calibration.uniformity(np.sum(draws < truths[:, None], axis=1), 31, 8)
    assert sum(test["counts"]) == 400
    assert (test["p_value"] > 1e-3) == calibrated


def test_bins_must_be_of_equal_size():
    with pytest.raises(ValueError, match="bins must divide draws \\+ 1 = 32, got 5; "):
        calibration.uniformity(np.arange(32), 31, 5)
