"""The scaling benchmark runs in its smoke preset, and its fits find the powers that times were made of."""

import json

import numpy as np
import pytest

from pgps.benchmarks import scaling
from pgps.benchmarks.scaling_point import METHODS, Point, measured
from pgps.cli import main


def test_smoke(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "scaling", "--preset", "smoke", "--repeats", "1", "--out", str(out)]) == 0
    record = json.loads((out / "result.json").read_text())
    assert [sweep["points"][0]["rows"] for sweep in record["sweeps"]] == [0, 5]
    for sweep in record["sweeps"]:
        assert [row["num_particles"] for row in sweep["points"]] == [100, 200]
        # A move and two Langevin steps.
        assert all(row["seconds"] > 0 and row["calls"] == 3 for row in sweep["points"])
    [memory] = record["memory"]
    assert len(memory["peak_mebibytes"]) == 4
    assert memory["peak"] >= max(memory["mebibytes"]) > 50
    printed = capsys.readouterr().out
    assert "exponent" in printed
    assert printed.splitlines()[-1] == str(out / "report.html")


def test_exponents_and_growth_are_those_of_what_was_measured():
    def measure(point: Point, repeats: int) -> dict:
        assert repeats == 7
        if point.steps:
            return point._asdict() | {"mebibytes": [1.0], "peak_mebibytes": [100.0 + k for k in range(point.steps)]}
        seconds = 1e-5 * point.num_particles * point.dim**0.5 * point.width**0.25 / point.devices
        return point._asdict() | {"seconds": seconds, "calls": 3}

    record = scaling.run(None, True, 7, scaling.PRESETS["full"], measure)
    exponents = [sweep["exponent"] for sweep in record["sweeps"]]
    np.testing.assert_allclose(exponents, [1.0, 1.0, 0.5, 0.5, 0.25, -1.0], atol=1e-9)
    assert all(sweep["standard_error"] < 1e-9 for sweep in record["sweeps"])
    assert record["memory"][0]["growth"] == 90.0
    assert "peak 199 MiB after 100 steps, +90 MiB since step 10" in scaling.format_table(record)


def test_the_standard_error_is_that_of_a_regression():
    sizes, rng = np.array([1e3, 1e4, 1e5, 1e6]), np.random.default_rng(0)
    fits = [scaling.exponent(list(sizes), list(sizes**1.1 * np.exp(0.1 * rng.standard_normal(4)))) for _ in range(400)]
    slopes, variances = np.array([(fit["exponent"], (fit["standard_error"] or 0) ** 2) for fit in fits]).T
    assert abs(slopes.mean() - 1.1) < 4 * slopes.std() / 20
    # A sample variance of two degrees of freedom has a standard deviation of its own size.
    assert abs(variances.mean() - slopes.var()) < 4 * slopes.var() * (1 / 20 + (2 / 400) ** 0.5)
    assert scaling.exponent([1, 2], [1, 2])["standard_error"] is None


def test_a_measurement_that_fails_is_one_line():
    with pytest.raises(RuntimeError, match="the measurement of Point.method='nonsense'.* failed: KeyError"):
        measured(Point("nonsense"), 1)


def test_points_of_the_presets_have_methods():
    for preset in scaling.PRESETS.values():
        points = [point for sweep in preset.sweeps for point in sweep.points] + list(preset.memory)
        assert {point.method for point in points} <= set(METHODS)
