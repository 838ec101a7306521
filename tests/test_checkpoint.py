"""Checkpoints: a run that was cut off ends with the same bits, others are refused, and no file is half written."""

import os
import signal
import threading
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from helpers import over
from pgps import adjustments, fields, fingerprint, methods, storage
from pgps.checkpoint import Keeper, Kept
from pgps.interrupt import deferred_interrupt
from pgps.result import Status

KEY = jax.random.key(3)
LAW = pgps.Normal(0.0, 2.0, shape=(2,))
LANGEVIN = methods.Langevin(1e-2, 20)
CUT = {
    "langevin": LANGEVIN,
    "exact": pgps.exact(field=fields.Affine(), moves=adjustments.MALA(), scouting=None),
}
pytestmark = pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")


def gaussian(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2)


def run(path: Path | None = None, *, logdensity_fn=gaussian, initial=LAW, every: float = 0, **changes):
    """A run of 20 particles, kept in `path` if there is one."""
    settings = {"key": KEY, "num_particles": 20, "method": LANGEVIN} | changes
    checkpoint = None if path is None else pgps.Checkpoint(path, every)
    return pgps.sample(logdensity_fn, initial, checkpoint=checkpoint, **settings)


def assert_same_bits(result, expected):
    """All that two runs have computed agrees, to the last bit."""
    for name in ("particles", "log_weights", "families"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    for name in ("status", "t", "ess", "log_evidence", "log_evidence_error", "num_evaluations", "warnings"):
        assert getattr(result, name) == getattr(expected, name)
    assert result.trace.keys() == expected.trace.keys()
    for name, column in expected.trace.items():
        np.testing.assert_array_equal(result.trace[name], column)


@pytest.fixture
def kept(tmp_path) -> Path:
    """A checkpoint of a run that was cut off after three steps."""
    path = tmp_path / "kept"
    assert run(path, max_evaluations=80).status == Status.EVALUATION_LIMIT
    return path


@over("method", CUT)
def test_a_resumed_run_has_the_same_bits(method, tmp_path):
    expected = run(method=method)
    assert expected.status == Status.COMPLETED
    path, calls = tmp_path / "sub" / "folder" / "kept", expected.num_evaluations.total
    for share in (0.3, 0.6):
        part = run(path, method=method, max_evaluations=int(share * calls))
        assert part.status == Status.EVALUATION_LIMIT
        assert 0 < part.t < 1
        assert np.all(np.isfinite(part.log_weights))
        # The evidence at an earlier t is not that of the target.
        assert part.log_evidence is part.log_evidence_error is part.ess is None
    resumed = run(path, method=method)
    assert_same_bits(resumed, expected)
    assert len(resumed.provenance["resumed_at"]) == 2
    assert resumed.provenance["seconds"] > part.provenance["seconds"]
    if expected.fitted is not None:
        np.testing.assert_array_equal(resumed.draw(KEY, 50).particles, expected.draw(KEY, 50).particles)

    # What is complete comes back at once, and is not written again.
    before = path.read_bytes()
    assert_same_bits(run(path, method=method), expected)
    assert path.read_bytes() == before


def test_a_pytree_and_measurements_come_back(tmp_path):
    initial = pgps.Normal({"a": jnp.zeros(2), "b": jnp.asarray(1.0)}, 1.0)
    settings = {
        "logdensity_fn": lambda particle: gaussian(particle["a"]) - particle["b"] ** 2,
        "initial": initial,
        "observe": lambda particles: {"mean": jnp.mean(particles["a"])},
    }
    expected = run(**settings)
    run(tmp_path / "kept", max_evaluations=100, **settings)
    resumed = run(tmp_path / "kept", **settings)
    np.testing.assert_array_equal(resumed.particles["b"], expected.particles["b"])
    np.testing.assert_array_equal(resumed.trace["mean"], expected.trace["mean"])


def test_a_failure_is_kept_too(tmp_path):
    def cliff(x):
        return jnp.where(x[0] > 3.0, jnp.nan, 10 * x[0])

    settings = {"logdensity_fn": cliff, "initial": pgps.Normal(0.0, 0.1, shape=(2,)), "method": methods.Langevin(0.1)}
    first = run(tmp_path / "kept", **settings)
    assert first.status == Status.NONFINITE_DENSITY
    assert_same_bits(run(tmp_path / "kept", **settings), first)


class TestCtrlC:
    @pytest.fixture(autouse=True)
    def _signals_arrive(self):
        """A shell's background jobs ignore SIGINT, and so would tests that are run as one."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_finishes_the_step_and_writes(self, tmp_path):
        seen = []

        def press(snapshot):
            seen.append(snapshot.num_steps)
            if snapshot.num_steps == 3:
                os.kill(os.getpid(), signal.SIGINT)
                signal.getsignal(signal.SIGINT)  # a moment for Python to notice it
                seen.append("after")

        part = run(tmp_path / "kept", callback=press, every=1000)
        assert part.status == Status.INTERRUPTED
        assert seen == [0, 1, 2, 3, "after"]
        assert len(part.trace["t"]) == 3
        assert "kept" in part.warnings[0]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert_same_bits(run(tmp_path / "kept"), run())

    def test_a_second_one_is_not_deferred(self):
        def press_twice():
            with deferred_interrupt() as interrupted:
                os.kill(os.getpid(), signal.SIGINT)
                assert interrupted()
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(5)

        with pytest.raises(KeyboardInterrupt):
            press_twice()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_other_threads_and_handlers_are_left_alone(self):
        def handler(number, frame):
            pass

        def within():
            with deferred_interrupt() as interrupted:
                found.append((signal.getsignal(signal.SIGINT), interrupted()))

        found = []
        thread = threading.Thread(target=within)
        thread.start()
        thread.join()
        before = signal.signal(signal.SIGINT, handler)
        try:
            within()
        finally:
            signal.signal(signal.SIGINT, before)
        assert found == [(signal.default_int_handler, False), (handler, False)]


class Bowl(eqx.Module):
    """A log-density with an array in it."""

    center: jax.Array

    def __call__(self, x):
        return -jnp.sum((x - self.center) ** 2)


class TestRefusal:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"key": jax.random.key(4)}, ["key.data", "[0, 3] there", "[0, 4] here"]),
            ({"num_particles": 22}, ["num_particles", "20 there", "22 here"]),
            ({"method": methods.Langevin(2e-2, 20)}, ["method.step_size", "0.01 there", "0.02 here"]),
            ({"method": methods.MALA(1e-2, 20)}, ["method.class", "Langevin", "MALA"]),
            ({"initial": pgps.Normal(0.0, 3.0, shape=(2,))}, ["initial.scale", "2.0", "3.0"]),
            ({"initial": pgps.Normal(0.0, 2.0, shape=(3,))}, ["dim", "2 there", "3 here"]),
            ({"logdensity_fn": lambda x: -0.5 * jnp.sum((x - 1.1) ** 2)}, ["logdensity_fn computes"]),
            ({"observe": lambda x: {"mean": jnp.mean(x)}}, ["observe computes"]),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_of_another_run(self, kept, changes, words):
        self.check(kept, changes, ["another run", "choose another file", *words])

    def test_of_another_version(self, kept, monkeypatch):
        monkeypatch.setattr(fingerprint, "__version__", "9.9")
        self.check(kept, {}, ["versions.pgps", "9.9 here"])

    def test_of_another_dtype(self, kept):
        with jax.enable_x64(True):
            self.check(kept, {"initial": pgps.Normal(jnp.zeros(2), 2.0)}, ["dtype", "float32 there", "float64 here"])

    def test_of_other_data(self, tmp_path):
        path = tmp_path / "kept"
        run(path, logdensity_fn=Bowl(jnp.zeros(2)), max_evaluations=80)
        self.check(path, {"logdensity_fn": Bowl(jnp.asarray([0.0, 1e-6]))}, ["logdensity_fn computes"])

    def test_another_name_is_no_other_run(self, kept):
        assert run(kept, logdensity_fn=lambda y: -0.5 * jnp.sum((y - 1.0) ** 2)).status == Status.COMPLETED

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda raw: raw[:-1], ["damaged", "checksum"]),
            (lambda raw: raw[: len(raw) // 2], ["damaged", "checksum"]),
            (lambda raw: raw[:-100] + bytes([raw[-100] ^ 1]) + raw[-99:], ["damaged", "checksum"]),
            (
                lambda raw: raw[:20] + b"0" + raw[21:] if raw[20:21] != b"0" else raw[:20] + b"1" + raw[21:],
                ["checksum"],
            ),
            (lambda raw: b"", ["no checkpoint"]),
            (lambda raw: b"hello\nworld\n", ["no checkpoint"]),
            (lambda raw: raw.replace(b"pgps-checkpoint 1", b"pgps-checkpoint 2", 1), ["format 2"]),
        ],
        ids=["one-byte-short", "half", "flipped", "wrong-checksum", "empty", "text", "format"],
    )
    def test_of_a_damaged_file(self, kept, damage, words):
        kept.write_bytes(damage(kept.read_bytes()))
        self.check(kept, {}, words)

    def test_of_arrays_that_do_not_fit(self, kept):
        record, arrays = storage.read_file(kept)
        for wrong in ({}, {"runs/0": np.zeros(3)}, arrays | {"rows/0/0": np.zeros(7)}):
            storage.replace_file(kept, record, wrong)
            self.check(kept, {}, ["damaged"])
        for wrong in ({}, record | {"num_rows": None}, record | {"seconds": "x"}):
            storage.replace_file(kept, wrong, arrays)
            self.check(kept, {}, ["damaged"])

    def test_nothing_is_unpickled(self, kept, tmp_path):
        class Trap:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "sprung",))

        record, arrays = storage.read_file(kept)
        with pytest.MonkeyPatch.context() as patch:
            real = np.savez
            patch.setattr(np, "savez", lambda file, allow_pickle, **rest: real(file, **rest))
            storage.replace_file(kept, record, arrays | {"runs/0": np.asarray([Trap()], object)})
        self.check(kept, {}, ["damaged", "allow_pickle"])
        assert not (tmp_path / "sprung").exists()

    def test_of_places_that_are_no_files(self, tmp_path):
        (tmp_path / "file").touch()
        for path, word in (
            (tmp_path, "folder"),
            (tmp_path / "file" / "kept", "place"),
            (tmp_path / ("x" * 300), "too long"),
            (Path("/dev/null"), "device"),
        ):
            with pytest.raises(ValueError, match=f"checkpoint .*{word}"):
                run(path)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: pgps.Checkpoint(3), ["path", "3"]),  # pyright: ignore[reportArgumentType]
            (lambda: pgps.Checkpoint(""), ["path", "''"]),
            (lambda: pgps.Checkpoint("x", every=-1), ["every", "-1"]),
            (lambda: pgps.Checkpoint("x", every=float("nan")), ["every", "nan"]),
            (lambda: pgps.sample(gaussian, LAW, key=KEY, checkpoint="x"), ["checkpoint", "'x'", "pgps.Checkpoint"]),  # pyright: ignore[reportArgumentType]
        ],
    )
    def test_of_bad_arguments(self, make, words):
        with pytest.raises((TypeError, ValueError)) as caught:
            make()
        assert all(word in str(caught.value) for word in words)

    def check(self, path: Path, changes: dict, words: list[str]) -> None:
        before, neighbours = path.read_bytes(), set(path.parent.iterdir())
        with pytest.raises(ValueError, match="^checkpoint ") as caught:
            run(path, **changes)
        message = str(caught.value)
        assert "\n" not in message
        assert str(path) in message
        for word in words:
            assert word in message
        assert path.read_bytes() == before
        assert set(path.parent.iterdir()) == neighbours


class TestAtomicWrites:
    def test_a_crash_before_the_rename_leaves_the_old_one(self, kept, monkeypatch):
        before = storage.read_file(kept)

        class PowerCutError(BaseException):
            pass

        def crash(*_):
            # What a kill leaves: the new file, complete, under another name.
            [draft] = kept.parent.glob(".kept-*.part")
            drafts.append(draft.read_bytes())
            raise PowerCutError

        drafts = []
        monkeypatch.setattr(os, "replace", crash)
        with pytest.raises(PowerCutError):
            run(kept)
        monkeypatch.undo()
        assert drafts
        np.testing.assert_equal(storage.read_file(kept), before)
        # And what it leaves is removed by the next run, which starts from the old one.
        (kept.parent / ".kept-abc.part").write_bytes(drafts[0][:100])
        assert_same_bits(run(kept), run())
        assert list(kept.parent.iterdir()) == [kept]

    def test_the_disk_has_the_file_before_it_gets_its_name(self, tmp_path, monkeypatch):
        events = []
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda file: (events.append(os.fstat(file).st_mode >> 12), fsync(file)))
        monkeypatch.setattr(os, "replace", lambda *names: (events.append("rename"), replace(*names)))
        storage.replace_file(tmp_path / "kept", {}, {})
        file, folder = 0o10, 0o04
        assert events == [file, "rename", folder]

    def test_a_full_disk_ends_no_run(self, tmp_path, monkeypatch):
        writes = 0
        replace = os.replace

        def fill_up(*names):
            nonlocal writes
            writes += 1
            if writes > 2:
                raise OSError(28, "No space left on device")
            replace(*names)

        monkeypatch.setattr(os, "replace", fill_up)
        path = tmp_path / "kept"
        result = run(path, callback=lambda _: None)
        assert result.status == Status.COMPLETED
        assert writes > 3
        [doubt] = [doubt for doubt in result.warnings if "No space left" in doubt]
        assert str(path) in doubt
        monkeypatch.undo()
        record, _ = storage.read_file(path)
        assert record["num_rows"] == [1]
        assert list(tmp_path.iterdir()) == [path]

    def test_a_disk_that_is_full_from_the_start_does(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match="checkpoint .* cannot be written .No space left"):
            run(tmp_path / "kept")
        assert not list(tmp_path.iterdir())

    def test_it_is_written_as_often_as_asked(self, tmp_path, monkeypatch):
        writes = []
        real = storage.replace_file
        monkeypatch.setattr(storage, "replace_file", lambda *args: (writes.append(1), real(*args)))
        run(tmp_path / "each", callback=lambda _: None)
        # At the start, and after each of 20 steps; the last one is written once.
        assert len(writes) == 21
        writes.clear()
        run(tmp_path / "rarely", every=1000, callback=lambda _: None)
        assert len(writes) == 2


def test_small_floats_survive(tmp_path):
    """NumPy's files know no bfloat16."""
    tree = {"half": jnp.arange(3, dtype=jnp.bfloat16), "none": None}
    keeper = Keeper(pgps.Checkpoint(tmp_path / "kept"), {})
    keeper.begin(Kept(tree, [{"half": np.ones((2, 3), jnp.bfloat16)}], 1.5, [0.5]))
    found = keeper.read(jax.eval_shape(lambda: tree), {"half": np.zeros((1, 64, 3), jnp.bfloat16)})
    assert found is not None
    assert found.runs["half"].dtype == found.rows[0]["half"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.runs["half"], tree["half"])
    np.testing.assert_array_equal(found.rows[0]["half"], 1)
    assert (found.seconds, found.resumed_at) == (1.5, [0.5])
