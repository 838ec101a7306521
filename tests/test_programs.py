"""Compiled programs: room for them in a process, and the folder where commands keep them."""

import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def kept_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """JAX keeps no programs, and what this library has in the user's cache would go into the folder."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], None)
    monkeypatch.setenv("PGPS_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)


def folder_of_programs() -> str | None:
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def test_commands_keep_programs_in_the_users_cache(kept_nowhere: Path):
    programs.keep_for_later()
    assert Path(folder_of_programs() or "").parent == kept_nowhere / "programs"
    assert Path(folder_of_programs() or "").is_dir()


def test_a_folder_that_the_user_chose_stays(kept_nowhere: Path):
    jax.config.update("jax_compilation_cache_dir", "/tmp/chosen")
    programs.keep_for_later()
    assert folder_of_programs() == "/tmp/chosen"
    assert not kept_nowhere.exists()


def test_without_a_place_for_them_programs_are_not_kept(kept_nowhere: Path):
    kept_nowhere.write_text("a file where the folder should be")
    programs.keep_for_later()
    assert folder_of_programs() is None


def test_a_folder_that_is_too_large_loses_its_oldest_half(tmp_path: Path):
    for age, name in enumerate("abcdef"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    programs._forget_oldest(tmp_path, largest=60)
    assert len(list(tmp_path.iterdir())) == 6
    programs._forget_oldest(tmp_path, largest=59)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_second_command_reads_what_the_first_one_compiled(tmp_path: Path):
    (tmp_path / "target.py").write_text("def logdensity(x):\n    return -(x**2).sum()\n")
    words = ["sample", "target.py:logdensity", "--dim", "2", "--method", "training-free", "--quiet"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    own |= {"PGPS_CACHE_DIR": str(tmp_path / "cache"), "JAX_LOGGING_LEVEL": "DEBUG"}
    logs = []
    for _ in range(2):
        command = [sys.executable, "-m", "pgps", *words]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
        logs.append(done.stderr)
    hits = "Persistent compilation cache hit for 'jit_advance_runs'"
    assert [hits in log for log in logs] == [False, True]


def test_options_of_a_cpu_are_not_given_to_other_compilers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert programs.compiler_options.__wrapped__() is None


def test_options_that_a_compiler_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch):
    """XLA's options come and go, and with one that it does not know it compiles nothing."""
    monkeypatch.setattr(programs, "CPU_OPTIONS", programs.CPU_OPTIONS | {"xla_cpu_of_another_version": 1})
    options = programs.compiler_options.__wrapped__()
    assert options is not None
    assert "xla_cpu_prefer_vector_width" in options
    assert "xla_cpu_of_another_version" not in options
    assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2
