"""Figures, animation and report, on data made by hand."""

import io
import re
import sys
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from handmade import make_result, make_weighed
from pgps import reporting
from pgps.reporting.animation import thin
from pgps.reporting.verdict import judge
from pgps.result import Status, load

LIMITS = reporting.Limits(-1.0, 2.0, -1.0, 1.0)


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"), int)


def make_frames(num: int) -> list[reporting.Frame]:
    density = np.zeros((12, 12))
    return [reporting.Frame(f"frame {i}", np.array([[i / num, 0.0], [0.0, i / num]]), density) for i in range(num)]


def test_density_grid_is_relative_to_its_top_and_has_the_right_side_up():
    grid = np.asarray(reporting.density_grid(lambda x: -8 * (x[0] - 2) ** 2 - 8 * (x[1] + 1) ** 2, LIMITS, num=31))
    assert grid.shape == (31, 31)
    assert grid.max() == 1
    # The top is at (2, -1): the last column of the first row.
    assert np.unravel_index(grid.argmax(), grid.shape) == (0, 30)
    assert grid[0, 20] == pytest.approx(np.exp(-8.0), rel=1e-4)


def test_limits_cover_particles_and_never_shrink():
    assert LIMITS.covering(np.zeros((3, 2))) == LIMITS
    wider = LIMITS.covering(np.array([[-3.0, 0.0], [0.0, 4.0]]), margin=0.5)
    assert wider == reporting.Limits(-3.5, 2.0, -1.0, 4.5)


@pytest.mark.parametrize("num", [1, 3, 4])
def test_panels_share_their_axes_and_show_every_particle(num):
    generator = np.random.default_rng(0)
    panels = [
        reporting.Panel(f"title {i}", f"note {i}", generator.uniform(0, 1, (7, 2)), np.arange(7) % 2)
        for i in range(num)
    ]
    figure = reporting.draw_panels(panels, np.eye(20), LIMITS)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == num
    for axes, panel in zip(shown, panels, strict=True):
        assert (*axes.get_xlim(), *axes.get_ylim()) == LIMITS
        assert axes.get_title("left") == panel.title
        assert axes.get_title("right") == panel.note
        np.testing.assert_allclose(np.asarray(axes.collections[-1].get_offsets()), panel.particles)
        assert len(np.unique(np.asarray(axes.collections[-1].get_facecolor()), axis=0)) == 2


def test_a_figure_is_encoded_without_global_state(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    panel = reporting.Panel("a title", "", np.zeros((1, 2)), np.zeros(1, int))
    figure = reporting.draw_panels([panel], np.eye(20), LIMITS)
    picture = pixels(reporting.encode(figure, "png"))
    assert picture.shape[1] > 1000
    assert reporting.encode(figure, "svg").startswith(b"<?xml")


@pytest.mark.parametrize(("dim", "shown"), [(1, 1), (2, 2), (9, 5)])
def test_pairs_show_the_first_coordinates(dim, shown):
    columns = np.random.default_rng(0).normal(size=(50, dim))
    figure = reporting.draw_pairs(columns, np.ones(50), [f"x[{i}]" for i in range(dim)])
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert len(visible) == shown * (shown + 1) // 2
    assert [axes.get_xlabel() for axes in visible[-shown:]] == [f"x[{i}]" for i in range(shown)]
    assert pixels(reporting.encode(figure, "png")).min() < 200


def test_pairs_leave_out_particles_without_weight():
    columns = np.concatenate([np.zeros((30, 2)), np.full((10, 2), 100.0)]) + np.linspace(0, 1, 40)[:, None]
    figure = reporting.draw_pairs(columns, np.repeat([1.0, 0.0], [30, 10]), ["a", "b"])
    assert all(axes.get_xlim()[1] < 10 for axes in figure.axes)


def test_pairs_thin_out_many_particles_but_not_the_marginals():
    columns = np.random.default_rng(0).normal(size=(10_001, 2))
    figure = reporting.draw_pairs(columns, np.ones(10_001), ["a", "b"])
    points = [len(np.asarray(points.get_offsets())) for axes in figure.axes for points in axes.collections]
    assert points == [4000]
    assert len(figure.axes[0].patches) == 60


def test_pairs_of_particles_that_are_all_alike():
    figure = reporting.draw_pairs(np.ones((20, 2)), np.ones(20), ["a", "b"])
    assert len(reporting.encode(figure, "png")) > 1000


@pytest.mark.parametrize(("num", "expected"), [(1, 1), (2, 2), (59, 59), (60, 60), (61, 60), (1000, 60)])
def test_thinning_keeps_the_ends(num, expected):
    frames = make_frames(num)
    chosen = thin(frames)
    assert len(chosen) == expected
    assert len({frame.title for frame in chosen}) == expected
    assert (chosen[0], chosen[-1]) == (frames[0], frames[-1])


def test_an_animation_moves_and_stops_at_its_end():
    data = reporting.animate(make_frames(3), np.array([0, 1]), np.eye(12), LIMITS)
    with Image.open(io.BytesIO(data)) as animation:
        assert getattr(animation, "n_frames", 0) == 3
        durations, pictures = [], []
        for index in range(3):
            animation.seek(index)
            durations.append(animation.info["duration"])
            pictures.append(np.asarray(animation.convert("RGB"), int))
    assert durations[-1] > 10 * durations[0]
    assert np.abs(pictures[0] - pictures[2]).max() > 50
    # White stays white, and both modes have their colour: orange and blue.
    assert (pictures[2][0, 0] == 255).all()
    red, _, blue = np.moveaxis(pictures[2], -1, 0)
    assert (red - blue).max() > 130
    assert (blue - red).max() > 90


def test_an_animation_needs_frames():
    with pytest.raises(ValueError, match="frames must hold at least one frame, got none"):
        reporting.animate([], np.zeros(0, int), np.eye(12), LIMITS)


def test_a_report_escapes_everything_and_needs_no_network():
    evil = "<script>alert('x')</script>"
    image = reporting.Image(b"\x89PNG", "png", f"caption {evil}", f'alt "{evil}')
    report = reporting.Report(
        title=f"title {evil}",
        asked=f"pgps {evil}",
        verdict=reporting.Verdict("care", f"headline {evil}", f"text {evil}"),
        facts={f"fact {evil}": f"value {evil}"},
        warnings=[f"warning {evil}"],
        tables=[reporting.Table(f"caption {evil}", ["a", f"head {evil}"], [["row", f"cell {evil}"]])],
        images=[image],
        text=f"summary {evil}",
        versions={"jax": f"1 {evil}"},
        settings={"key": evil},
    )
    page = reporting.render(report)
    # The page's own script, and no other.
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;") == 16
    assert "data:image/png;base64,iVBORw==" in page
    assert re.findall(r'(?:src|href)=(?!"data:)|url\(|@import|https?://', page) == []
    for part in ("prefers-color-scheme: dark", "@media print", 'name="viewport"', 'lang="en"'):
        assert part in page


def test_an_empty_report_has_no_warnings():
    report = reporting.Report(
        title="title",
        asked="asked",
        verdict=reporting.Verdict("good", "headline", "text"),
        facts={},
        warnings=(),
        tables=(),
        images=(),
        text="",
        versions={},
        settings={},
    )
    page = reporting.render(report)
    assert "<h2>Warnings</h2>" not in page
    assert "<h2>Measured</h2>" not in page


@pytest.mark.parametrize(
    ("changes", "level", "headline"),
    [
        ({}, "care", "Doubt."),
        ({"ess": 12.0}, "good", "Trust."),
        ({"ess": 12.0, "warnings": ("hm",)}, "care", "Doubt."),
        ({"status": Status.STEP_LIMIT, "t": 0.25, "warnings": ("hm",)}, "bad", "Failed."),
        ({"status": Status.INTERRUPTED}, "bad", "Failed."),
    ],
)
def test_the_verdict_on_a_run(changes: dict, level: Literal["good", "care", "bad"], headline: str):
    verdict = judge(make_result(jnp.zeros((5, 2)), **changes))
    assert (verdict.level, verdict.headline) == (level, headline)
    assert ("t = 0.25" in verdict.text) == (changes.get("t") == 0.25)
    assert ("no exact weights" in verdict.text) == (changes == {})


def test_a_run_is_saved_with_its_report(tmp_path):
    particles = {"a": jnp.linspace(0, 1, 20).reshape(10, 2), "b": jnp.linspace(3, 4, 10)}
    result = make_result(particles, warnings=("a doubt & more",), log_weights=jnp.full(10, -300.0).at[3].set(-jnp.inf))
    path = reporting.save_run(result, tmp_path / "new" / "run", "pgps sample a.py:f --dim 3")
    assert path == tmp_path / "new" / "run" / "report.html"
    assert {file.name for file in path.parent.iterdir()} == {
        "marginals.png",
        "particles.npz",
        "report.html",
        "result.json",
    }
    np.testing.assert_array_equal(load(path.parent).particles["b"], particles["b"])
    page = path.read_text(encoding="utf-8")
    for text in ("pgps sample a.py:f --dim 3", "a doubt &amp; more", "1,234", "Doubt.", "jax 1.0"):
        assert text in page
    assert page.count("<script") == 1
    assert "Log evidence" not in page


def test_a_report_shows_weights_and_evidence_where_there_are_any(tmp_path):
    result = make_result(jnp.ones((4, 1)), ess=3.4, log_evidence=-1.25, log_evidence_error=0.5)
    page = reporting.save_run(result, tmp_path / "run", "asked").read_text(encoding="utf-8")
    assert "-1.2500 ± 0.5000" in page
    assert "Effective sample size" in page


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="holds files"):
        reporting.save_run(make_result(jnp.ones((4, 1))), tmp_path, "asked")
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    reporting.check_installed()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    calls = (
        reporting.check_installed,
        lambda: reporting.save_run(make_weighed(), tmp_path / "new", "asked"),
        lambda: reporting.rebuild_run(tmp_path),
        lambda: reporting.compare_runs([tmp_path, tmp_path]),
        lambda: reporting.draw_pairs(np.zeros((3, 1)), np.ones(3), ["x"]),
        lambda: reporting.animate([], np.zeros(0, int), np.zeros((2, 2)), reporting.Limits(0, 1, 0, 1)),
    )
    for call in calls:
        with pytest.raises(ModuleNotFoundError, match=r"needs pillow and jinja2.*pip install 'pgps\[report\]'"):
            call()
    assert list(tmp_path.iterdir()) == []
