"""The benchmark of the baselines' steps runs in its smoke preset, and measures what it says."""

import json

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
    assert out.splitlines()[-1] == str(tmp_path / "out" / "result.json")


def test_the_clock_counts_steps_and_picks_from_repeats(monkeypatch):
    """Steps of 2 ms each, on a clock that they move themselves; the machine dawdles in every other run."""
    now, runs = [0.0], [0]

    def steps(count: int) -> float:
        runs[0] += 1
        now[0] += 2e-3 * count * (1 + runs[0] % 2)
        return 0.0

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert milliseconds(steps, 4, 0.1, min) == pytest.approx(2.0)
    assert milliseconds(steps, 4, 0.1, max) == pytest.approx(4.0)
    assert milliseconds(steps, 4, 0.1) == pytest.approx(3.0)
