"""Results on disk: they come back as they were, nothing is overwritten, and damage is told."""

import collections
import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps import storage
from pgps.density import Evaluations
from pgps.settings import describe


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


PARTICLES = {
    "array": jnp.arange(6.0).reshape(3, 2),
    "dict": {"b": jnp.ones((3, 2)), "a": jnp.zeros(3)},
    "nested": ({"w": [jnp.ones(3), None]}, jnp.zeros((3, 1))),
}


def make_result(particles):
    return pgps.Result(
        particles=particles,
        log_weights=jnp.array([0.0, -jnp.inf, 0.0]),
        status=pgps.Status.COMPLETED,
        t=1.0,
        num_evaluations=Evaluations(2, 30),
        trace={"t": np.array([0.5, 1.0]), "loss": np.array([1.0, np.nan])},
        warnings=("a doubt",),
        provenance={"method": {"class": "pgps.methods.PGPS"}, "seconds": 0.1, "dim": 2, "versions": {}},
    )


@pytest.mark.parametrize("name", PARTICLES)
def test_round_trip(tmp_path, name):
    result = make_result(PARTICLES[name])
    assert result.save(tmp_path / "run") == tmp_path / "run"
    again = pgps.load(tmp_path / "run")
    for field in dataclasses.fields(result):
        kept, read = getattr(result, field.name), getattr(again, field.name)
        assert jax.tree.structure(kept) == jax.tree.structure(read)
        jax.tree.map(np.testing.assert_array_equal, kept, read)


def test_the_moments_shown_are_those_of_both_islands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgps.result._MOST_PARTICLES", 50)
    # The first island has no weight left, and the second one is at 3.
    islands = jnp.repeat(jnp.array([0.0, 3.0]), 100)
    result = dataclasses.replace(make_result(islands), log_weights=jnp.where(islands == 0, -jnp.inf, 0.0))
    [row] = [line for line in result.summary().splitlines() if line.startswith("x")]
    assert row.split()[1:3] == ["3", "0"]


def test_a_real_run_round_trips(tmp_path):
    target, initial = pgps.targets.two_modes()
    method = pgps.training_free(dt=0.5, langevin_steps=1)
    result = pgps.sample(target, initial, key=jax.random.key(0), num_particles=8, method=method)
    again = pgps.load(result.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.particles, result.particles)
    assert again.particles.dtype == result.particles.dtype
    assert again.provenance == result.provenance
    assert again.num_evaluations == result.num_evaluations
    assert again.summary() == result.summary()


def test_classes_of_the_user_need_an_example(tmp_path):
    result = make_result(Point(jnp.zeros(3), jnp.ones(3)))
    result.save(tmp_path / "run")
    plain = pgps.load(tmp_path / "run").particles
    assert list(plain) == [".x", ".y"]
    again = pgps.load(tmp_path / "run", like=Point(jnp.zeros(()), jnp.zeros(()))).particles
    assert isinstance(again, Point)
    np.testing.assert_array_equal(again.y, 1.0)
    with pytest.raises(ValueError, match="like must have 2 leaves.*got 1"):
        pgps.load(tmp_path / "run", like=0.0)


def test_the_record_is_plain_json(tmp_path):
    make_result(PARTICLES["dict"]).save(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["status"] == "COMPLETED"
    assert record["num_evaluations"] == {"values": 2, "gradients": 30}
    with np.load(tmp_path / "run" / "particles.npz", allow_pickle=False) as arrays:
        assert "log_weights" in arrays


def test_nothing_is_overwritten(tmp_path):
    result = make_result(PARTICLES["array"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="full holds files; choose another"):
        result.save(tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        result.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_and_new_parents_are_fine(tmp_path):
    result = make_result(PARTICLES["array"])
    (tmp_path / "empty").mkdir()
    result.save(tmp_path / "empty")
    result.save(tmp_path / "a" / "b" / "c")
    assert pgps.load(tmp_path / "a" / "b" / "c").t == pgps.load(tmp_path / "empty").t == 1.0


def test_folders_that_cannot_be_replaced_are_filled(tmp_path, monkeypatch):
    """The current folder, and one behind a link."""
    result = make_result(PARTICLES["array"])
    for name in ("current", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "current")
    for path in (".", tmp_path / "link"):
        result.save(path)
        assert pgps.load(path).t == 1.0
    for name in ("current", "real"):
        assert {path.name for path in (tmp_path / name).iterdir()} == {"result.json", "particles.npz"}


def test_an_ordered_dict_keeps_its_order(tmp_path):
    """JAX has its leaves as they were put in, and those of other dicts by name."""
    particles = collections.OrderedDict(b=jnp.zeros(3), a=jnp.ones(3))
    make_result(particles).save(tmp_path / "run")
    again = pgps.load(tmp_path / "run", like=particles).particles
    np.testing.assert_array_equal(again["a"], 1.0)
    np.testing.assert_array_equal(again["b"], 0.0)


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        make_result(PARTICLES["array"]).save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path):
        return make_result(PARTICLES["array"]).save(tmp_path / "run")

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="path must be a folder that Result.save wrote"):
            pgps.load(tmp_path / "nowhere")

    @pytest.mark.parametrize("name", ["result.json", "particles.npz"])
    def test_truncated(self, folder, name):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="damaged"):
            pgps.load(folder)

    @pytest.mark.parametrize(
        "change",
        [
            {"status": "FINE"},
            {"t": None},
            {"t": [1]},
            {"warnings": 3},
            {"warnings": [1]},
            {"num_evaluations": {"calls": 1}},
            {"provenance": "none"},
            {"particles": {"kind": "leaf", "index": 9}},
            {"particles": {"kind": "set", "items": []}},
            {"dtypes": {"log_weights": "object"}},
            {"ess": "much"},
        ],
        ids=str,
    )
    def test_an_entry_of_another_kind(self, folder, change):
        record = json.loads((folder / "result.json").read_text()) | change
        (folder / "result.json").write_text(json.dumps(record))
        with pytest.raises(ValueError, match="damaged result .*; restore it or run again"):
            pgps.load(folder)

    @pytest.mark.parametrize(
        "arrays",
        [{"log_weights": np.zeros(2)}, {"particles/0": np.zeros((4, 2))}, {"families": np.zeros(5, int)}],
        ids=str,
    )
    def test_arrays_that_do_not_fit(self, folder, arrays):
        with np.load(folder / "particles.npz") as archive:
            np.savez(folder / "particles.npz", **(dict(archive) | arrays))
        with pytest.raises(ValueError, match="not equally many"):
            pgps.load(folder)

    def test_another_format(self, folder):
        (folder / "result.json").write_text('{"format": 99}')
        with pytest.raises(ValueError, match="no result of format 1"):
            pgps.load(folder)


def test_weights_enter_the_summary():
    result = make_result(PARTICLES["array"])
    # The second particle has weight 0: the mean of the first coordinate is (0 + 4) / 2.
    row = next(line for line in result.summary().splitlines() if line.startswith("x[0]"))
    assert float(row.split()[1]) == 2.0
    assert "doubt: a doubt" in result.summary()


def test_a_summary_says_why_there_is_no_evidence():
    result = make_result(PARTICLES["array"])
    assert "log evidence: none (this method has no exact weights)" in result.summary()
    weighed = dataclasses.replace(result, trace=result.trace | {"log_evidence": np.zeros(2)})
    assert "log evidence: none (t = 1 was not reached)" in weighed.summary()


def test_settings_are_plain_data():
    described = describe(pgps.paper(alpha=0.5))
    assert json.loads(json.dumps(described)) == described
    assert described["path"]["alpha"] == 0.5
    assert described["path"]["class"].endswith("LogWeightedShrinkage")
    assert described["trainer"]["optimizer"].endswith("adam")
    assert describe(jnp.ones(3)) == [1.0, 1.0, 1.0]
    assert describe(jnp.ones(1000)) == "float32 array of shape (1000,)"
    assert describe(float("inf")) == "inf"


def test_trees_survive_storage():
    for tree in PARTICLES.values():
        skeleton, leaves = storage.encode_tree(tree)
        again = storage.decode_tree(json.loads(json.dumps(skeleton)), leaves)
        assert jax.tree.structure(again) == jax.tree.structure(tree)
