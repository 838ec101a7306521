"""The report of a run: recording, choice of coordinates, rebuilding, comparing, and folders that are damaged."""

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from handmade import make_recording, make_result, make_weighed
from pgps import reporting
from pgps.cli import main
from pgps.reporting.charts import draw_traces, to_svg
from pgps.reporting.coordinates import Coordinates, resampled
from pgps.reporting.figures import draw_pairs
from pgps.reporting.recording import Recording
from pgps.reporting.run import Run
from pgps.run import Snapshot

EVIL = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's folder, as `pgps sample` writes it."""
    folder, result = tmp_path_factory.mktemp("saved") / "run", make_weighed()
    reporting.save_run(result, folder, "pgps sample a.py:f --dim 2", make_recording(result))
    return folder


@pytest.fixture
def run_folder(saved, tmp_path):
    """A copy of it, to be spoilt."""
    return shutil.copytree(saved, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_resampling_follows_the_weights():
    counts = np.bincount(resampled(np.array([1.0, 0.0, 2.0, 5.0]), 800), minlength=4)
    np.testing.assert_array_equal(counts, [100, 0, 200, 500])


def test_the_most_telling_coordinates_of_many():
    generator = np.random.default_rng(1)
    columns = generator.normal(size=(1500, 61))
    columns[:, 17] = np.where(columns[:, 17] > 0, 3.0, -3.0) + 0.5 * generator.normal(size=1500)
    columns[:, 40] = np.exp(columns[:, 40])
    columns[:, 5] = columns[:, 52] + 0.3 * generator.normal(size=1500)
    columns[:, 9] = 7.0
    coordinates = Coordinates([f"x[{i}]" for i in range(61)], columns, np.full(1500, 1 / 1500))
    chosen = coordinates.most_telling()
    # Two modes and a skew one by shape, the pair by correlation; the fifth is a matter of chance.
    assert set(chosen) >= {17, 40, 5, 52}
    assert len(chosen) == 5
    assert chosen == sorted(chosen)
    assert coordinates.most_telling(np.array([3, 17, 30])) == [3, 17, 30]


def test_weights_decide_what_is_telling_and_the_moments():
    columns = np.concatenate([np.zeros((50, 1)), np.full((50, 1), 10.0)])
    coordinates = Coordinates(["x"], columns, np.repeat([0.75, 0.25], 50) / 50)
    mean, deviation, low, median, high = coordinates.describe(0)
    assert mean == pytest.approx(2.5)
    assert deviation == pytest.approx(10 * np.sqrt(0.75 * 0.25))
    assert (low, median, high) == (0, 0, 10)


def test_the_neck_of_a_funnel_is_telling():
    generator = np.random.default_rng(2)
    columns = generator.normal(size=(1000, 9))
    columns[:, 1:] *= np.exp(0.75 * columns[:, :1])
    assert 0 in Coordinates([f"x[{i}]" for i in range(9)], columns, np.full(1000, 1e-3)).most_telling()


@pytest.mark.parametrize(("num_steps", "frames"), [(1, 2), (19, 20), (60, 20), (1000, 20)])
def test_a_recording_is_bounded_and_keeps_the_ends(num_steps, frames):
    recorder = reporting.Recorder(num_frames=20)
    for step in range(num_steps + 1):
        recorder(Snapshot(step / num_steps, step, {"a": np.full((2000, 3), step), "b": np.zeros(2000)}, {}))
        assert len(recorder._kept) <= 41
    recording = recorder.recording()
    assert recording is not None
    assert len(recording.t) == frames
    assert (recording.step[0], recording.step[-1], recording.t[-1]) == (0, num_steps, 1)
    assert np.all(np.diff(recording.step) > 0)
    assert recording.positions.shape == (frames, 500, 4)
    np.testing.assert_array_equal(recording.positions[:, 0, 0], recording.step)


def test_a_recording_of_very_many_coordinates_keeps_some():
    recorder = reporting.Recorder()
    recorder(Snapshot(0.0, 0, np.arange(3000.0).reshape(3, 1000), {}))
    recording = recorder.recording()
    assert recording is not None
    assert recording.positions.shape == (1, 3, 128)
    np.testing.assert_array_equal(recording.positions[0, 0], recording.coordinates)
    assert reporting.Recorder().recording() is None


def test_a_payload_holds_what_was_recorded():
    import base64

    recording = make_recording(make_weighed(num=50, dim=3), num_steps=7)
    payload = recording.payload()
    levels = np.frombuffer(base64.b64decode(payload["data"]), "<u2").reshape(8, 3, 50)
    low, high = np.array(payload["low"])[..., None], np.array(payload["high"])[..., None]
    shown = low + (high - low) * levels / 65_535
    tolerance = (high - low).max() / 65_535
    np.testing.assert_allclose(shown.transpose(0, 2, 1), recording.positions, atol=tolerance)


def test_recording_changes_nothing_and_sees_the_run():
    target, initial = pgps.targets.two_modes()
    method = pgps.training_free(0.0, 0.5, dt=0.25, langevin_steps=2, langevin_step_size=1e-4)
    recorder = reporting.Recorder()
    settings = {"key": jax.random.key(0), "num_particles": 20, "method": method}
    watched = pgps.sample(target, initial, callback=recorder, **settings)
    plain = pgps.sample(target, initial, **settings)
    np.testing.assert_array_equal(watched.particles, plain.particles)
    recording = recorder.recording()
    assert recording is not None
    np.testing.assert_array_equal(recording.t, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(recording.positions[-1], watched.particles, rtol=1e-6)


def test_a_large_run_makes_a_small_page(tmp_path):
    result = make_weighed(num=1000, dim=20, num_steps=100)
    path = reporting.save_run(result, tmp_path / "run", "asked", make_recording(result, num_steps=100))
    page = path.read_text("utf-8")
    assert path.stat().st_size < 5_000_000
    assert "Of 20 coordinates these 5" in page
    assert "500 of 1,000 particles" in page
    assert re.findall(r'(?:src|href)=(?!"(?:data:|#))|@import|https?://', page) == []
    # Names are unique in a page.
    names = re.findall(r'\sid="([^"]*)"', page)
    assert len(names) == len(set(names))


def test_a_page_shows_every_part(run_folder):
    page = (run_folder / "report.html").read_text("utf-8")
    for heading in ("Modes", "Particles along t", "Marginals and pairs", "Coordinates", "Along the way"):
        assert f"<h2>{heading}</h2>" in page
    for text in ("logdensity, sampled by PGPS", "Trust.", "-1.2500 ± 0.0500", "Pareto k is 0.31", "faults = 0"):
        assert text in page
    assert page.count('class="drawing"') == 6


def test_hostile_names_do_no_harm(tmp_path):
    names = [EVIL, "a$b", "$\\frac", "-->", "名", "x" * 300]
    particles = {name: jnp.asarray(np.random.default_rng(0).normal(size=30)) for name in names}
    trace = {"t": np.linspace(0.5, 1, 3), EVIL: np.arange(3.0), "$\\frac": np.arange(3.0)}
    result = make_result(particles, trace=trace, warnings=(EVIL,))
    result = dataclasses.replace(result, provenance=result.provenance | {"logdensity_fn": EVIL})
    page = reporting.save_run(result, tmp_path / EVIL.replace("/", ""), EVIL, make_recording(result)).read_text("utf-8")
    # The frames, as data, and the page's own.
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="frames">', "<script>"]
    assert page.count("</script>") == 2


def test_traces_leave_out_what_never_changes():
    trace = {"t": np.linspace(0.1, 1, 10), "faults": np.zeros(10), "mine": np.arange(10.0), "loss": np.full(10, np.nan)}
    drawings, constant = draw_traces(trace)
    assert [drawing.alternative.partition(":")[0] for drawing in drawings] == ["t, the time on the path", "mine"]
    assert constant == {"faults": 0}
    assert draw_traces({"t": np.zeros(0)}) == ([], {})


def test_a_drawing_has_the_colours_of_the_page():
    svg = to_svg(draw_pairs(np.random.default_rng(0).normal(size=(9, 2)), np.ones(9), ["a", "b"]), "here")
    assert svg.startswith("<svg")
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []
    assert "var(--series-2)" in svg
    assert "currentColor" in svg
    assert all(name.startswith("here-") for name in re.findall(r'(?:\sid="|href="#|url\(#)([^")]*)', svg))


@pytest.mark.parametrize("number", [1, 3])
def test_a_run_without_frames_or_steps_has_a_page(tmp_path, number):
    result = make_weighed(dim=number, trace={"t": np.zeros(0)})
    folder = result.save(tmp_path / "saved")
    path, verdict = reporting.rebuild_run(folder)
    page = path.read_text("utf-8")
    assert verdict.headline == "Trust."
    assert "not recorded: this result was saved from Python" in page
    assert "Particles along t" not in page


def test_rebuilding_gives_the_same_page(run_folder, capsys):
    before = contents(run_folder)
    (run_folder / "report.html").write_text(before["report.html"].decode().replace("Trust.", "Gone."))
    assert main(["report", str(run_folder)]) == 0
    assert capsys.readouterr().out == (
        f"Trust. The run is complete, and none of its checks speaks against it.\n{run_folder / 'report.html'}\n"
    )
    assert contents(run_folder) == before
    (run_folder / "report.html").unlink()
    assert main(["report", str(run_folder), "--quiet", "--out", str(run_folder.parent / "page.html")]) == 0
    assert (run_folder.parent / "page.html").read_bytes() == before["report.html"]
    assert not (run_folder / "report.html").exists()


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pgps: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_folder_that_is_no_run(tmp_path, run_folder, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    for name in ("empty", "missing", "file"):
        assert f"{name} is no run's folder" in refused([str(tmp_path / name)], capsys)
        assert f"{name} is no run's folder" in refused([str(run_folder), "--compare", str(tmp_path / name)], capsys)
    assert "--out" in refused([str(run_folder), "--out", str(tmp_path / "missing" / "page.html")], capsys)
    assert "2 to 4 runs" in refused([str(run_folder), "--compare", *[str(run_folder)] * 4], capsys)


def test_a_page_of_another_kind_is_left_alone(run_folder, capsys):
    # As `pgps demo` leaves it: a run and a report of its own.
    (run_folder / "report.html").write_text('<meta name="generator" content="pgps report">')
    before = contents(run_folder)
    assert "report.html is in the way" in refused([str(run_folder)], capsys)
    assert contents(run_folder) == before


def _edit(record: dict, path: str, value: object) -> dict:
    *parents, last = path.split("/")
    node = record
    for name in parents:
        node = node[name]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 2),
        ("status", "FINE"),
        ("status", None),
        ("t", "late"),
        ("warnings", [3]),
        ("warnings", 3),
        ("log_evidence", "high"),
        ("log_evidence_error", []),
        ("ess", "all"),
        ("num_evaluations", 3),
        ("num_evaluations/values", "many"),
        ("num_evaluations/others", 3),
        ("particles", {"kind": "leaf", "index": 7}),
        ("particles", {"kind": "cloud"}),
        ("particles", []),
        ("provenance", None),
        ("provenance/dim", 3),
        ("provenance/method", "PGPS"),
        ("provenance/seconds", "long"),
        ("provenance/versions", "1"),
    ],
)
def test_an_altered_record_is_refused(run_folder, capsys, path, value):
    record = json.loads((run_folder / "result.json").read_text())
    (run_folder / "result.json").write_text(json.dumps(_edit(record, path, value)))
    before = contents(run_folder)
    assert str(run_folder) in refused([str(run_folder)], capsys)
    assert contents(run_folder) == before


@pytest.mark.parametrize("name", ["result.json", "particles.npz", "frames.npz"])
@pytest.mark.parametrize("keep", [0, 1, 100, -1, -30])
def test_a_truncated_file_is_refused(run_folder, capsys, name, keep):
    data = (run_folder / name).read_bytes()
    # The last byte of the record is a line break.
    (run_folder / name).write_bytes(data[: keep - 1 if keep < 0 else keep])
    before = contents(run_folder)
    assert "damaged" in refused([str(run_folder)], capsys)
    assert contents(run_folder) == before


def _with_arrays(file: Path, **changes: np.ndarray | None) -> None:
    with np.load(file) as archive:
        arrays = {**archive, **changes}
    with file.open("wb") as target:
        np.savez_compressed(target, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("particles.npz", {"log_weights": np.zeros(7)}),
        ("particles.npz", {"log_weights": np.full(200, -np.inf)}),
        ("particles.npz", {"log_weights": np.full(200, np.nan)}),
        ("particles.npz", {"log_weights": None}),
        ("particles.npz", {"particles/0": np.zeros((200, 3))}),
        ("particles.npz", {"particles/0": np.full((200, 2), np.nan)}),
        ("particles.npz", {"particles/0": np.array([["a", "b"]] * 200)}),
        ("particles.npz", {"particles/0": np.zeros((0, 2)), "log_weights": np.zeros(0)}),
        ("particles.npz", {"trace/t": np.zeros(7)}),
        ("particles.npz", {"trace/t": None}),
        ("particles.npz", {"trace/dt": np.array(["x"] * 20)}),
        ("frames.npz", {"t": None}),
        ("frames.npz", {"t": np.full(21, np.nan)}),
        ("frames.npz", {"step": np.zeros(21)}),
        ("frames.npz", {"coordinates": np.array([0, 2])}),
        ("frames.npz", {"coordinates": np.array([0])}),
        ("frames.npz", {"positions": np.zeros((21, 0, 2))}),
        ("frames.npz", {"positions": np.full((21, 5, 2), np.inf)}),
        ("frames.npz", {"positions": np.zeros((21, 5))}),
        ("frames.npz", {"positions": np.zeros((21, 5, 2), "datetime64[D]")}),
        ("particles.npz", {"trace/t": np.zeros(20, "datetime64[D]")}),
        ("particles.npz", {"trace/t": np.zeros(20, complex)}),
        ("particles.npz", {"trace/dt": np.zeros((20, 1))}),
    ],
)
def test_altered_arrays_are_refused(run_folder, capsys, name, changes):
    _with_arrays(run_folder / name, **changes)
    before = contents(run_folder)
    assert "damaged" in refused([str(run_folder)], capsys)
    assert contents(run_folder) == before


def test_flipped_bytes_never_end_in_a_traceback(run_folder):
    generator = np.random.default_rng(0)
    num_refused = 0
    for name in ("particles.npz", "frames.npz", "result.json"):
        data = (run_folder / name).read_bytes()
        for _ in range(15):
            flipped = bytearray(data)
            flipped[generator.integers(len(data))] ^= int(generator.integers(1, 256))
            (run_folder / name).write_bytes(flipped)
            # In a name or a number of the record, a flipped bit cannot be told.
            with contextlib.suppress(ValueError):
                Run.read(run_folder)
                continue
            num_refused += 1
        (run_folder / name).write_bytes(data)
    assert num_refused > 25


def test_nothing_is_unpickled(run_folder, capsys):
    _with_arrays(run_folder / "frames.npz", t=np.array([{"a": 1}] * 21, dtype=object))
    assert "damaged" in refused([str(run_folder)], capsys)


def test_runs_are_set_side_by_side(tmp_path, run_folder, capsys):
    other = make_weighed(num=300, log_evidence=-1.35, warnings=("a doubt & more",))
    reporting.save_run(other, tmp_path / "other", "pgps sample a.py:f --seed 1")
    assert main(["report", str(run_folder), "--compare", str(tmp_path / "other")]) == 0
    path = run_folder / "comparison.html"
    text = "The runs agree, but not all can be trusted. The log evidences are within 1.4 standard errors of the first."
    assert capsys.readouterr().out == f"{text}\n{path}\n"
    page = path.read_text("utf-8")
    for text in ("-0.1000 ± 0.0707", "other: a doubt &amp; more", "-1.3500 ± 0.0500", ">140<", ">210<", "1,234"):
        assert text in page
    assert page.count('class="drawing"') == 2
    assert "<h2>Marginals</h2>" in page
    # Again, over the page of before.
    assert main(["report", str(run_folder), "--compare", str(tmp_path / "other"), "--quiet"]) == 0
    assert path.read_text("utf-8") == page


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"log_evidence": -1.3}, "The runs agree."),
        ({"log_evidence": -2.25}, "The runs do not agree."),
        ({"log_evidence": None, "log_evidence_error": None, "ess": None}, "Doubt."),
        ({"status": pgps.Status.STEP_LIMIT}, "Not comparable."),
    ],
)
def test_the_verdict_on_a_comparison(tmp_path, run_folder, changes, headline):
    make_weighed(**changes).save(tmp_path / "other")
    _, verdict = reporting.compare_runs([run_folder, tmp_path / "other"])
    assert verdict.headline == headline


def test_runs_with_nothing_in_common(tmp_path, run_folder):
    make_result({"slope": jnp.linspace(0, 1, 30)}).save(tmp_path / "other")
    path, _ = reporting.compare_runs([run_folder, tmp_path / "other"])
    assert "no coordinate in common" in path.read_text("utf-8")


def test_runs_of_one_name_are_told_apart(tmp_path, run_folder):
    shutil.copytree(run_folder, tmp_path / "b" / "run")
    path, _ = reporting.compare_runs([run_folder, tmp_path / "b" / "run"])
    assert f'<th scope="col">{tmp_path / "b" / "run"}</th>' in path.read_text("utf-8")
    path, _ = reporting.compare_runs([run_folder, run_folder])
    assert f"2: {run_folder}" in path.read_text("utf-8")


def test_a_recording_survives_its_file(run_folder):
    recording = Recording.load(run_folder, 2)
    expected = make_recording(make_weighed())
    assert recording is not None
    for name, array in vars(expected).items():
        np.testing.assert_array_equal(getattr(recording, name), array)
