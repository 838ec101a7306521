"""Room for compiled programs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps import programs


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Counts how often programs were dropped; the process seems to hold 100 maps."""
    calls = []
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append("cleared"))
    (tmp_path / "maps").write_text("a map\n" * 100)
    monkeypatch.setattr(programs, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(programs, "_LIMIT", tmp_path / "limit")
    monkeypatch.setattr(programs, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(programs, "_kept", 0)
    return calls


@pytest.mark.parametrize(("limit", "expected"), [("150", 1), ("1000", 0), ("no number", 0), (None, 0)])
def test_programs_are_dropped_if_they_hold_half_of_the_maps(
    cleared: list[str], tmp_path: Path, limit: str | None, expected: int
):
    if limit is not None:
        (tmp_path / "limit").write_text(limit)
    programs.make_room()
    assert len(cleared) == expected


def test_maps_are_not_counted_at_every_call(cleared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "limit").write_text("150")
    monkeypatch.setattr(programs, "_SECONDS_BETWEEN", 3600.0)
    monkeypatch.setattr(programs, "_last_count", -3600.0)
    programs.make_room()
    programs.make_room()
    assert len(cleared) == 1


def test_programs_are_not_dropped_again_for_maps_that_stay(cleared: list[str], tmp_path: Path):
    (tmp_path / "limit").write_text("150")
    programs.make_room()
    programs.make_room()
    assert len(cleared) == 1


def test_runs_and_results_outlive_their_programs(monkeypatch: pytest.MonkeyPatch):
    def run() -> pgps.Result:
        return pgps.sample(
            lambda x: -jnp.sum(x**2), pgps.Normal(shape=(2,)), key=jax.random.key(0), num_particles=8, method=method
        )

    method = pgps.training_free(dt=0.5, langevin_steps=1)
    first = run()
    monkeypatch.setattr(programs, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(programs, "_LARGEST_SHARE", 0.0)
    np.testing.assert_array_equal(run().particles, first.particles)
    assert first.summary()
