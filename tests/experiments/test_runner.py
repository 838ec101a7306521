"""`pgps reproduce`: resuming, refusing, and what it writes, on an experiment that takes no time."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from pgps import experiments
from pgps.cli import main
from pgps.experiments import AbstractExperiment, Cell, Claim, Findings, Record
from pgps.experiments.base import standard_error
from pgps.reporting import Table


class Dice(AbstractExperiment):
    """Two cells of random numbers; the second can be told to fail."""

    title = "Dice | thrown"

    def __init__(self):
        self.ran: list[str] = []
        self.fail: BaseException | None = None
        self.sides = 6

    def seeds(self, preset: str) -> tuple[int, ...]:
        return (0, 1, 2)

    def cells(self, preset: str) -> list[Cell]:
        return [self._cell("first", preset), self._cell("second", preset)]

    def _cell(self, name: str, preset: str) -> Cell:
        def run(seeds: Sequence[int], progress: bool | None) -> Record:
            if name == "second" and self.fail is not None:
                raise self.fail
            self.ran.append(name)
            rows = [{"seed": seed, "eyes": float(np.random.default_rng(seed).integers(self.sides))} for seed in seeds]
            return Record(rows, {"x": np.arange(3.0)})

        return Cell(name, {"sides": self.sides, "preset": preset}, run)

    def findings(self, preset: str, records) -> Findings:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot(records["first"].arrays["x"])
        claim = Claim("dice are fair", records["first"].text("eyes"), "reproduced", "a|b")
        return Findings((claim,), (Table("Eyes", ("cell", "eyes"), [("first", "1")]),), figure, "Eyes.", ("A note.",))


@pytest.fixture
def dice(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    experiment = Dice()
    monkeypatch.setitem(experiments.EXPERIMENTS, "dice", experiment)
    return experiment


def record(folder) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_it_writes_everything(dice, tmp_path, capsys):
    assert main(["reproduce", "dice", "--out", "out"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "out/report.html"
    assert "sizes for testing" in out[0]
    assert "dice: reproduced: dice are fair" in out[1]
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("experiment.json", "cells", "result.json"),
        *("figure.png", "figure.svg", "page.md", "report.html"),
    }
    found = record(folder)
    assert found["seeds"] == [0, 1, 2]
    assert found["verdict"] == "reproduced"
    assert found["command"] == "pgps reproduce dice --out out"
    assert [row["seed"] for row in found["cells"]["first"]["rows"]] == [0, 1, 2]
    page = (folder / "page.md").read_text()
    assert "![Eyes.](figure.png)" in page
    assert "a\\|b" in page
    assert "- A note." in page
    assert "they say nothing about the claims" in page
    assert "dice are fair" in (folder / "report.html").read_text()


def test_an_interrupted_experiment_goes_on_and_ends_with_the_same_numbers(dice, tmp_path):
    assert main(["reproduce", "dice", "--out", "whole", "--quiet"]) == 0
    dice.ran.clear()
    dice.fail = KeyboardInterrupt()
    assert main(["reproduce", "dice", "--out", "cut", "--quiet"]) == 130
    assert dice.ran == ["first"]
    assert not (tmp_path / "cut" / "result.json").exists()
    dice.fail = None
    assert main(["reproduce", "dice", "--out", "cut", "--quiet"]) == 0
    assert dice.ran == ["first", "second"]
    whole, cut = record(tmp_path / "whole"), record(tmp_path / "cut")
    for name in ("first", "second"):
        assert whole["cells"][name]["rows"] == cut["cells"][name]["rows"]
    # A third time nothing is computed, and the page is made anew.
    (tmp_path / "cut" / "page.md").unlink()
    assert main(["reproduce", "dice", "--out", "cut", "--quiet"]) == 0
    assert dice.ran == ["first", "second"]
    assert (tmp_path / "cut" / "page.md").exists()


def test_without_a_folder_the_same_command_goes_on(dice, tmp_path):
    assert main(["reproduce", "dice", "--quiet"]) == 0
    assert main(["reproduce", "dice", "--quiet"]) == 0
    assert dice.ran == ["first", "second"]
    assert (tmp_path / "runs" / "reproduce" / "smoke" / "dice" / "report.html").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["dice", "--seeds", "3,4", "--out", "out"], "--out must be new, or hold the same experiment, but out holds"),
        (["dice", "--preset", "paper", "--out", "out"], "it differs in preset"),
        (["dice", "--out", "file"], "--out must be a folder"),
        (["dice", "--out", "full"], "--out must be new or empty"),
        (["dice", "--out", "damaged"], "damaged holds a damaged experiment.json"),
        (["dice", "--seeds", "1,2,1"], "--seeds must differ, got 1 more than once"),
        (["dice", "--seeds", "0-2,1"], "--seeds must differ, got 1 more than once"),
        (["dice", "--seeds", "a"], "must be whole numbers"),
        (["dice", "--seeds", "3-1"], "must be whole numbers"),
        (["dice", "--seeds", "-1"], "--seeds"),
        (["dice", "--preset", "huge"], "--preset must be one of smoke, paper, got 'huge'"),
        (
            ["fig9"],
            "ITEM must be one of fig1, fig2, fig3-mode, fig3-sensitivity, fig4, fig5, theory, dice, table1, table2, "
            "table3, table4 or all, got 'fig9'; see",
        ),
        (["table1", "--protocol", "ours"], "--protocol must be one of corrected, published, got 'ours'; choose one"),
        ([], "ITEM must be one of"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run(dice, tmp_path, capsys, argv, message):
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 0
    capsys.readouterr()
    dice.ran.clear()
    before = (tmp_path / "out" / "result.json").read_text()
    (tmp_path / "file").write_text("mine")
    for name in ("full", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "damaged" / "experiment.json").write_text("{")
    assert main(["reproduce", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert dice.ran == []
    assert (tmp_path / "out" / "result.json").read_text() == before
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"seconds": 1, "rows": 3}', '{"rows": []}', "[" * 100_000], ids=range(5)
)
def test_a_damaged_cell_is_told_before_anything_is_run(dice, tmp_path, capsys, content):
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 0
    cell = tmp_path / "out" / "cells" / "first.json"
    cell.write_text(content)
    (tmp_path / "out" / "cells" / "second.json").unlink()
    dice.ran.clear()
    capsys.readouterr()
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 2
    assert "--out out holds a damaged cells/first" in capsys.readouterr().err
    assert dice.ran == []
    assert cell.read_text() == content


@pytest.mark.parametrize("content", [None, b"", b"PK"], ids=["missing", "empty", "cut off"])
def test_arrays_of_a_cell_that_are_damaged_are_told(dice, tmp_path, capsys, content):
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 0
    arrays = tmp_path / "out" / "cells" / "first.npz"
    arrays.unlink() if content is None else arrays.write_bytes(content)
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 2
    assert "--out out holds a damaged cells/first" in capsys.readouterr().err


def test_other_settings_are_another_experiment(dice, capsys):
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 0
    dice.sides = 20
    assert main(["reproduce", "dice", "--out", "out", "--quiet"]) == 2
    assert "it differs in settings" in capsys.readouterr().err


def test_the_list(capsys):
    assert main(["reproduce", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    tables = [f"table{number}-{protocol}" for number in (1, 2, 3) for protocol in ("published", "corrected")]
    assert names == ["fig1", "fig2", "fig3-mode", "fig3-sensitivity", "fig4", "fig5", "theory", *tables]


@pytest.mark.parametrize(
    ("item", "protocol", "names"),
    [
        ("fig2", "published", ["fig2"]),
        ("table1", "corrected", ["table1-corrected"]),
        ("table3", "published", ["table3-published"]),
        # Tables 1 and 4 show the same runs.
        ("table4", "published", ["table1-published"]),
        ("table2-published", "corrected", ["table2-published"]),
    ],
)
def test_an_item_is_found_in_a_protocol(item: str, protocol: str, names: list[str]):
    assert experiments.find(item, protocol) == names


def test_all_are_all_figures():
    found = experiments.find("all", "corrected")
    assert found == [name for name in experiments.EXPERIMENTS if "table" not in name]
    assert len(found) > 5


@pytest.mark.parametrize(
    ("item", "shown"), [("table5", "'table5'"), ("table4-published", "'table4-pub"), (None, "none")]
)
def test_what_is_not_there_is_not_found(item: str | None, shown: str):
    with pytest.raises(ValueError, match=f"item must be one of fig1, .*, table4 or all, got {shown}.*; see reproduce"):
        experiments.find(item, "corrected")


def test_a_protocol_is_one_of_two():
    with pytest.raises(ValueError, match="protocol must be one of corrected, published, got 'right'; choose one"):
        experiments.find("fig1", "right")


def test_seeds_may_be_given_as_ranges(dice, tmp_path):
    assert main(["reproduce", "dice", "--out", "out", "--quiet", "--seeds", "7,0-2"]) == 0
    assert record(tmp_path / "out")["seeds"] == [7, 0, 1, 2]


def test_a_record_says_how_sure_it_is():
    rows = [{"e": 1.0}, {"e": 2.0}, {"e": 6.0}]
    assert standard_error(np.array([1.0, 2.0, 6.0])) == pytest.approx(np.sqrt(7 / 3))
    assert Record(rows).text("e", 2) == "3.00 ± 1.53"
    assert Record(rows[:1]).text("e", 2) == "1.00"
