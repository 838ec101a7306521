"""`pgps bench bnn-step`: it measures, writes a record, and does without PyTorch."""

import json

import pytest

from pgps.benchmarks import bnn_step


def test_smoke_without_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(bnn_step, "torch_version", lambda: None)
    record = bnn_step.run(tmp_path / "out", quiet=True, repeats=1, preset=bnn_step.SMOKE)
    [row] = record["milliseconds_per_iteration"]
    assert row["one_batch"] > 0
    assert row["batch_each"] > 0
    assert row["torch_loop"] is row["torch_released"] is None
    assert json.loads((tmp_path / "out" / "result.json").read_text())["milliseconds_per_iteration"] == [row]
    assert "pip install 'pgps[bench]'" in bnn_step.format_table(record)


def test_both_loops_of_torch_are_measured():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    record = bnn_step.run(None, quiet=True, repeats=1, preset=bnn_step.SMOKE)
    [row] = record["milliseconds_per_iteration"]
    assert row["torch_released"] > 0
    assert row["torch_loop"] > 0
    assert f"({row['torch_released'] / row['batch_each']:.1f}x)" in bnn_step.format_table(record)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_loops_pass_through_each_network_once_and_twice(passes, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    calls, cross_entropy = [], torch.nn.functional.cross_entropy
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda *a, **k: calls.append(1) or cross_entropy(*a, **k))
    shape = bnn_step.SMOKE.shapes["tiny"]
    bnn_step._torch_steps(shape, passes)(3)
    assert len(calls) == 3 * passes * shape.num_particles
