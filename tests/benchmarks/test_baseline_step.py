"""The benchmark of the baselines' steps runs in its smoke preset, and measures what it says."""

import json

import numpy as np
import pytest

from pgps.benchmarks import baseline_step
from pgps.benchmarks.timing import milliseconds
from pgps.cli import main


def test_smoke(tmp_path, capsys):
    argv = ["bench", "baseline-step", "--preset", "smoke", "--repeats", "1", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(record["milliseconds"]) == {"langevin", "mala", "svgd"} == set(baseline_step.METHODS)
    for row in record["milliseconds"].values():
        assert row["ratio"] == pytest.approx(row["step"] / row["floor"])
        assert row["floor"] > 0
    out = capsys.readouterr().out
    assert "ratio" in out
    assert out.splitlines()[-1] == str(tmp_path / "out" / "report.html")


def test_the_clock_counts_steps_and_takes_turns(monkeypatch):
    """Steps of 2 and 6 ms, on a clock that they move themselves; the machine grows slower from turn to turn."""
    now, slowness = [0.0], [1.0]

    def steps(milliseconds_each: float, drift: float):
        def take(count: int) -> float:
            now[0] += 1e-3 * milliseconds_each * count * slowness[0]
            slowness[0] += drift
            return 0.0

        return take

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    short, long = milliseconds([steps(2.0, 0.0), steps(6.0, 1.0)], 4, 0.1)
    assert len(short) == len(long) == 4
    assert short[-1] > short[0]
    np.testing.assert_allclose(np.array(long) / short, 3.0)
