"""Malformed inputs: some hundred, of every kind, are refused in one line; and faults, if there were any, are found."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from pgps import _cli_inputs, cli
from pgps.benchmarks import fuzz, fuzz_damage, fuzz_inputs


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    fuzz.prepare(folder / "valid")
    return folder


@pytest.fixture
def _prepared(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of valid files is made once."""
    monkeypatch.setattr(fuzz, "prepare", lambda folder: folder.symlink_to(scratch / "valid"))


@pytest.mark.usefixtures("_prepared")
def test_smoke(tmp_path, capsys):
    argv = ["bench", "fuzz", "--preset", "smoke", "--seed", "1", "--out", str(tmp_path / "out")]
    code = cli.main(argv)
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    assert record["failures"] == []
    assert code == 0
    assert record["inputs"] == sum(kind["inputs"] for kind in record["kinds"].values()) == 200
    assert set(record["kinds"]) >= set(fuzz_inputs.KINDS)
    assert all(record["kinds"][kind].get("exit 2", 0) > 0 for kind in fuzz_inputs.KINDS)
    out = capsys.readouterr().out
    assert "0 failures" in out
    assert out.splitlines()[-1] == str(tmp_path / "out" / "report.html")


@pytest.mark.parametrize("command", fuzz_inputs.COMMANDS, ids=" ".join)
def test_the_commands_that_are_damaged_are_valid(command, scratch, monkeypatch):
    monkeypatch.setattr(fuzz_inputs, "COMMANDS", [command])
    monkeypatch.setattr(fuzz, "_PERCENT_VALID", 100)
    outcome = fuzz.attempt(0, 0, scratch)
    assert outcome.end in ("valid", "exit 0")
    assert outcome.faults == []


def explode(*_):
    raise RuntimeError("a fault")


def scribble(*_):
    Path("rows.csv").write_text("overwritten")
    raise _cli_inputs.MisuseError("after a write")


def stray(*_):
    Path("..", "stray").write_text("elsewhere")
    Path("..", "stray").unlink()
    raise _cli_inputs.MisuseError("after a write elsewhere")


def chat(*_):
    print("a word")
    print("two\nlines", file=sys.stderr)
    raise _cli_inputs.MisuseError("after words")


def sleep(*_):
    while True:
        pass


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (explode, "RuntimeError: a fault"),
        (scribble, "changed rows.csv"),
        (stray, "stray, which is outside its folder"),
        (chat, r"two\nlines"),
        (sleep, "HungError"),
    ],
)
def test_faults_are_found(fault, told, scratch, monkeypatch):
    monkeypatch.setattr(cli, "_parser", fault)
    monkeypatch.setattr(fuzz, "LONGEST", 0.2)
    outcome = fuzz.attempt(0, 0, scratch)
    assert any(told in found for found in outcome.faults), outcome


def test_an_input_depends_on_its_seed_and_number_alone(scratch):
    first, again, other = (fuzz.attempt(seed, 7, scratch) for seed in (3, 3, 4))
    assert first[:3] == again[:3]
    assert first.argv != other.argv


def test_the_intruder_acts_if_it_is_let_in(tmp_path, monkeypatch):
    """Else no fault would be found if a reader unpickled it."""
    monkeypatch.chdir(tmp_path)
    np.save("trap.npy", np.array([fuzz_damage._Intruder()], dtype=object))
    np.load("trap.npy", allow_pickle=True)[0].close()
    assert Path("unpickled").exists()
