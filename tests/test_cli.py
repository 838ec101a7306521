"""The command line: each command end to end, and one line for each misuse."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import pgps
from pgps import recipes
from pgps.cli import main
from pgps.experiments import demo

TARGET = """\
import jax.numpy as jnp
from neighbour import SCALE

CONSTANT = 3

def logdensity(x):
    return -0.5 * jnp.sum((x / SCALE) ** 2)

def vector(x):
    return -x

def fails(x):
    raise RuntimeError("first line\\nsecond line")

def nowhere(x):
    return jnp.sum(x) * jnp.nan

def nan_on_the_way(x):
    return jnp.where(x[0] > -1, jnp.nan, -0.5 * jnp.sum(x**2))
"""
FAST = ["--method", "training-free", "--dt", "0.1", "--langevin-steps", "20", "--particles", "300"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "target.py").write_text(TARGET)
    (tmp_path / "neighbour.py").write_text("SCALE = 0.5\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name == "neighbour" or name.startswith("pgps_target_")]:
        del sys.modules[name]


def misuse(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that is wrong: it must say so in one line, and write nothing."""
    before = set(Path().rglob("*.*"))
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pgps: error: ")
    assert captured.err.count("\n") == 1
    assert {path for path in Path().rglob("*.*") if "__pycache__" not in path.parts} == before
    return captured.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["COMMAND", "--help"]),
        ("nonsense", ["'nonsense'", "demo", "sample", "bench"]),
        ("demo extra", ["extra"]),
        ("demo --seed -1", ["--seed", "'-1'", "at least 0"]),
        ("demo --seed 4294967296", ["--seed", "'4294967296'", "at most 4294967295"]),
        ("demo --seed x", ["--seed", "'x'"]),
        ("bench", ["benchmark"]),
        ("bench other", ["'other'", "training-step"]),
        ("bench resume --repeats 3", ["--repeats", "resume"]),
        ("bench calibration --repeats 3", ["--repeats", "calibration"]),
        ("bench scaling --seeds 3", ["--seeds", "scaling"]),
        ("bench training-step --repeats 0", ["--repeats", "'0'"]),
        ("sample", ["FILE.py:function"]),
        ("sample target.py:logdensity", ["--dim", "--shape"]),
        ("sample target.py:logdensity --dim 0", ["--dim", "'0'"]),
        ("sample target.py:logdensity --dim 2 --shape 2", ["--dim", "--shape"]),
        ("sample target.py:logdensity --shape 2,x", ["--shape", "'2,x'"]),
        ("sample target.py:logdensity --shape 2,", ["--shape", "'2,'"]),
        ("sample target.py:logdensity --shape 99999,99999", ["--shape", "at most 2147483647"]),
        (f"sample target.py:logdensity --dim 2 --out {'x' * 300}", ["--out", "File name too long"]),
        (f"sample {'x' * 300}.py:logdensity --dim 2", ["FILE.py:function", "File name too long"]),
        ("sample target.py:logdensity --dim 2 --out=", ["--out", "it is empty"]),
        ("sample target.py:logdensity --dim 2 --checkpoint a\0b", ["--checkpoint", "null"]),
        ("sample target.py:logdensity --dim 2 --out \udcff", [r"'\udcff'", "UTF-8"]),
        ("report run --out \x1b[31m/page.html", [r"\x1b[31m"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_command_that_cannot_be_parsed(capsys, command, words):
    error = misuse(command, capsys)
    assert all(word in error for word in words), error


@pytest.mark.usefixtures("folder")
def test_words_with_line_breaks_are_told_in_one_line(capsys):
    assert main(["sample", "two\nlines.py:f", "--dim", "2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--initial gamma:1,2", ["--initial", "'gamma:1,2'", "normal:MEAN,SCALE"]),
        ("--initial normal", ["--initial", "'normal'"]),
        ("--initial normal:0,1,2", ["--initial", "'normal:0,1,2'"]),
        ("--initial normal:0,-1", ["--initial normal:0,-1", "scale", "-1.0", "above 0"]),
        ("--initial normal:nan,1", ["--initial normal:nan,1", "mean", "finite"]),
        ("--initial uniform:2,1", ["--initial uniform:2,1", "low", "exchange"]),
        ("--particles 1", ["--particles", "'1'", "at least 2"]),
        ("--particles 1e3", ["--particles", "'1e3'"]),
        ("--particles 100000000000000000000", ["--particles", "at most 2147483647"]),
        ("--alpha 2", ["--alpha", "2.0", "[0, 1]"]),
        ("--beta 0", ["--beta", "0.0", "(0, 1]"]),
        ("--psi -1", ["--psi", "-1.0", "above 0"]),
        ("--psi nan", ["--psi", "nan"]),
        ("--psi x", ["--psi", "'x'"]),
        ("--width 0", ["--width", "0"]),
        ("--max-training-steps 0", ["--max-training-steps", "0"]),
        ("--langevin-steps -1", ["--langevin-steps", "-1"]),
        ("--final-langevin-steps -1", ["--final-langevin-steps", "-1"]),
        ("--langevin-steps 1 --step-size 0", ["--step-size", "0.0"]),
        ("--langevin-steps 1 --langevin-every 2", ["--langevin-every", "2.0"]),
        ("--step-size 0.1", ["--step-size", "0.1", "add --langevin-steps"]),
        ("--langevin-every 0.1 --langevin-steps 0", ["--langevin-every", "0.1", "add --langevin-steps"]),
        ("--dt 0.1", ["--dt", "--method paper", "use --method training-free"]),
        ("--method training-free --psi 1", ["--psi", "--method training-free", "use --method paper"]),
        ("--method training-free --dt 0", ["--dt", "0.0"]),
        ("--method exact --psi 1", ["--psi", "--method exact", "use --method paper"]),
        ("--method exact --conditional-ess 2", ["--conditional-ess", "2.0"]),
        ("--method exact --particles 7", ["--particles", "even", "7"]),
        ("--method other", ["--method", "'other'", "training-free"]),
        ("--method langevin --step-size 0", ["--step-size", "0.0"]),
        ("--method svgd --steps 0", ["--steps", "0", "at least 1"]),
        ("--method smc --steps 10", ["--steps", "--method smc", "use --method langevin or annealed-langevin"]),
        ("--method mala --langevin-steps 3", ["--langevin-steps", "--method mala", "use --method paper or"]),
        ("--resume", ["--resume", "add --checkpoint"]),
        ("--checkpoint-every 3", ["--checkpoint-every", "add --checkpoint"]),
        ("--checkpoint missing --resume", ["--resume", "missing", "begin anew"]),
        ("--checkpoint missing --checkpoint-every -1", ["--checkpoint-every", "-1.0"]),
        ("--checkpoint target.py", ["--checkpoint", "target.py", "no checkpoint"]),
        ("--checkpoint .", ["--checkpoint", "folder"]),
        ("--max-evaluations 0", ["--max-evaluations", "'0'"]),
        ("--max-seconds 0", ["--max-seconds", "0.0", "positive"]),
        ("--alph 1", ["--alph"]),
        ("--method=--", ["--method", "'--'"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_option_of_sample_that_is_wrong(capsys, options, words):
    method = "" if "--method" in options else "--method paper"
    error = misuse(f"sample target.py:logdensity --dim 2 {method} {options}", capsys)
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("target.py", ["'target.py'", "a file and a function"]),
        ("target.py:", ["'target.py:'"]),
        (":logdensity", ["':logdensity'"]),
        ("missing.py:f", ["missing.py", "check the path"]),
        (".:f", ["exists"]),
        ("data.txt:f", ["data.txt", ".py"]),
        ("unimportable.py:f", ["unimportable.py", "ModuleNotFoundError", "no_such_module"]),
        ("unparsable.py:f", ["unparsable.py", "SyntaxError", "line 1"]),
        ("exits.py:f", ["exits.py", "SystemExit", "3"]),
        ("target.py:missing", ["'missing'", "logdensity", "vector"]),
        ("target.py:CONSTANT", ["target.py:CONSTANT", "is 3"]),
        ("target.py:vector", ["target.py:vector", "scalar", "float32[2]"]),
        ("target.py:fails", ["target.py:fails", "first line"]),
        ("target.py:nowhere", ["target.py:nowhere", "nan", "300 particles"]),
    ],
)
def test_a_target_that_cannot_be_sampled(folder, capsys, target, words):
    (folder / "data.txt").write_text("f = 1\n")
    (folder / "unimportable.py").write_text("import no_such_module\n")
    (folder / "unparsable.py").write_text("def f(:\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    error = misuse(f"sample {target} --dim 2 {' '.join(FAST)}", capsys)
    assert all(word in error for word in words), error
    assert "second line" not in error


@pytest.mark.parametrize("library", ["numpyro", "pymc"])
def test_a_model_whose_library_is_missing_names_its_extra(folder, capsys, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    (folder / "model.py").write_text(f"import {library}\n")
    error = misuse("sample model.py:model", capsys)
    assert "model.py cannot be imported" in error
    assert f"run: pip install 'pgps[{library}]'" in error


@pytest.mark.parametrize("command", ["demo", "sample target.py:logdensity --dim 2", "bench training-step"])
def test_an_output_folder_that_cannot_be_used(folder, capsys, command):
    (folder / "full").mkdir()
    (folder / "full" / "precious.txt").write_text("keep")
    assert "full holds files" in misuse(f"{command} --out full", capsys)
    assert "is a file" in misuse(f"{command} --out target.py", capsys)
    assert "target.py" in misuse(f"{command} --out target.py/below", capsys)
    assert (folder / "full" / "precious.txt").read_text() == "keep"
    (folder / "runs").write_text("a file in the way")
    assert "runs" in misuse(command, capsys)


@pytest.mark.parametrize("command", ["demo", "sample target.py:logdensity --dim 2"])
@pytest.mark.parametrize("module", ["matplotlib", "jinja2", "PIL"])
@pytest.mark.usefixtures("folder")
def test_the_extra_is_asked_for_before_anything_runs(capsys, monkeypatch, command, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(pgps, "sample", lambda *_args, num_particles=0, **_kwargs: pytest.fail(f"{num_particles}"))
    monkeypatch.setattr(demo, "run", lambda *_args, **_kwargs: pytest.fail("sampled"))
    assert "pip install 'pgps[report]'" in misuse(command, capsys)


@pytest.mark.usefixtures("folder")
def test_a_failure_on_the_device_is_one_line(capsys, monkeypatch):
    def run_out(*_args, num_particles=0, **_kwargs):
        raise jax.errors.JaxRuntimeError(
            f"RESOURCE_EXHAUSTED: Out of memory allocating {num_particles} bytes.\nmore\nlines"
        )

    monkeypatch.setattr(pgps, "sample", run_out)
    assert "Out of memory allocating 0 bytes)" in misuse("sample target.py:logdensity --dim 2", capsys)


def test_version_and_help(capsys):
    for argument in ("--version", "--help", "sample --help", "demo --help", "bench --help"):
        with pytest.raises(SystemExit) as end:
            main(argument.split())
        assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"pgps {pgps.__version__}\n")
    assert "pgps sample banana.py:logdensity --dim 2" in text
    # The recipes' own defaults, not copies of them.
    steps = inspect.signature(recipes.paper).parameters["max_training_steps"].default
    assert f"(paper: {steps})" in " ".join(text.split())


@pytest.mark.usefixtures("folder")
def test_sample_writes_the_next_free_folder_and_says_where(capsys):
    Path("runs/sample-1").mkdir(parents=True)
    assert main(["sample", "target.py:logdensity", "--dim", "2", *FAST]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("PGPS: completed, t = 1 after 10 steps")
    assert lines[-1] == str(Path("runs/sample-2/report.html"))
    assert captured.err == ""
    assert list(Path("runs/sample-1").iterdir()) == []
    files = {path.name for path in Path("runs/sample-2").iterdir()}
    assert files == {"report.html", "result.json", "particles.npz", "marginals.png", "frames.npz", "config.toml"}

    result = pgps.load("runs/sample-2")
    assert result.particles.shape == (300, 2)
    # The target's standard deviation, which the neighbouring file sets; four standard errors of 600 numbers, and
    # Langevin steps of 0.01 on a variance of 0.25 add 1 %.
    assert np.std(result.particles) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(1200) + 0.03)
    assert not any(Path(entry) == Path.cwd() for entry in sys.path if entry)


@pytest.mark.usefixtures("folder")
def test_sample_passes_its_options_on(capsys, monkeypatch):
    calls = []

    def record(logdensity_fn, initial, *, num_particles=0, **settings):
        calls.append((logdensity_fn, initial, num_particles, settings))
        raise ValueError("method seen")

    monkeypatch.setattr(pgps, "sample", record)
    options = {"alpha": 0.5, "beta": 0.25, "psi": 2.0, "max_dt": 0.5, "width": 3, "learning_rate": 0.2}
    options |= {"max_training_steps": 4, "threshold": 0.5, "langevin_steps": 2, "langevin_every": 0.1}
    options |= {"final_langevin_steps": 9}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    command = "sample target.py:logdensity --shape 2,3 --initial uniform:-1,2 --particles 20 --seed 7 --quiet"
    assert "method seen" in misuse(f"{command} --method paper {flags} --step-size 0.03", capsys)
    [(function, initial, num_particles, settings)] = calls
    assert function(np.ones(2)) == -4
    assert eqx.tree_equal(initial, pgps.Uniform(-1.0, 2.0, shape=(2, 3)))
    assert num_particles == 20
    assert settings["key"] == jax.random.key(7)
    assert settings["progress"] is False
    assert settings["method"] == pgps.paper(**options, langevin_step_size=0.03)


@pytest.mark.usefixtures("folder")
def test_an_option_left_out_is_left_to_the_library(capsys, monkeypatch):
    calls = []

    def record(*_args, num_particles="left out", **settings):
        calls.append((num_particles, settings["method"], settings["progress"]))
        raise ValueError("method seen")

    monkeypatch.setattr(pgps, "sample", record)
    expected: dict[str, pgps.methods.AbstractMethod] = {
        "": pgps.exact(),
        "--method exact": pgps.exact(),
        "--method paper": pgps.paper(),
        "--method training-free": pgps.training_free(),
        "--method smc": pgps.methods.TemperedSMC(),
        "--method langevin": pgps.methods.Langevin(),
        "--method annealed-langevin": pgps.methods.AnnealedLangevin(),
        "--method mala --step-size 0.5 --steps 3": pgps.methods.MALA(0.5, 3),
        "--method svgd": pgps.methods.SVGD(),
        "--method pfg": pgps.methods.PFG(),
    }
    for method in expected:
        misuse(f"sample target.py:logdensity --dim 2 {method}", capsys)
    assert calls == [("left out", method, None) for method in expected.values()]


@pytest.mark.usefixtures("folder")
def test_a_baseline_is_sampled_from_the_command_line(capsys):
    command = "sample target.py:logdensity --dim 2 --method langevin --step-size 0.02 --steps 100 --particles 400"
    assert main([*command.split(), "--out", "first"]) == 0
    assert capsys.readouterr().out.startswith("Langevin: completed")
    assert main(["sample", "--config", "first/config.toml", "--out", "second", "--quiet"]) == 0
    first, second = pgps.load("first"), pgps.load("second")
    np.testing.assert_array_equal(first.particles, second.particles)
    # The variance is 0.25, and a step of 0.02 adds 4 % to it; four standard errors of 800 numbers.
    assert np.std(first.particles) == pytest.approx(0.51, abs=4 * 0.51 / np.sqrt(1600))
    page = Path("first/report.html").read_text()
    assert "sampled by Langevin" in page
    assert "no exact weights" in page


@pytest.mark.usefixtures("folder")
def test_doubts_are_never_lost(capsys):
    command = "sample target.py:logdensity --dim 2 --particles 50 --method paper --max-training-steps 1 --psi 1"
    command += " --out new --quiet"
    assert main(command.split()) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{Path('new/report.html')}\n"
    assert captured.err.startswith("pgps: warning: training ended above its threshold")
    assert "training ended above its threshold" in Path("new/report.html").read_text()


@pytest.mark.usefixtures("folder")
def test_a_run_that_fails_on_the_way_is_reported_and_exits_with_1(capsys):
    assert main(["sample", "target.py:nan_on_the_way", "--dim", "2", "--initial", "normal:-2,0.3", *FAST]) == 1
    captured = capsys.readouterr()
    assert "nonfinite_density" in captured.out
    report = Path(captured.out.splitlines()[-1])
    assert "Failed." in report.read_text()
    assert json.loads((report.parent / "result.json").read_text())["status"] == "NONFINITE_DENSITY"


@pytest.mark.usefixtures("folder")
def test_interrupting_the_demo_writes_nothing(capsys, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert main(["demo"]) == 130
    assert not Path("runs").exists()
    assert capsys.readouterr().err == "pgps: interrupted\n"


@pytest.mark.usefixtures("folder")
def test_a_run_that_is_cut_short_and_resumed(capsys):
    command = ["sample", "target.py:logdensity", "--dim", "2", *FAST, "--quiet", "--checkpoint", "kept"]
    assert main([*command, "--max-evaluations", "30000", "--out", "part"]) == 1
    assert "max_evaluations = 30000" in capsys.readouterr().err
    assert main([*command, "--resume", "--checkpoint-every", "5", "--out", "rest"]) == 0
    assert main([*command[:-2], "--out", "whole"]) == 0
    part, rest, whole = (pgps.load(name) for name in ("part", "rest", "whole"))
    assert 0 < part.t < 1
    assert rest.provenance["resumed_at"] == [part.t]
    np.testing.assert_array_equal(rest.particles, whole.particles)
    assert rest.num_evaluations == whole.num_evaluations
    before = Path("kept").read_bytes()
    assert main([*command, "--seed", "1", "--out", "other"]) == 2
    assert "pgps: error: --checkpoint kept is of another run: key" in capsys.readouterr().err
    assert Path("kept").read_bytes() == before
    assert not Path("other").exists()


@pytest.mark.usefixtures("folder")
def test_a_disk_that_fails_is_one_line(capsys, monkeypatch):
    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo, "run", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(demo, "save", fail)
    error = misuse("demo --quiet --out somewhere", capsys)
    assert "--out somewhere" in error
    assert "No space left on device" in error


@pytest.mark.usefixtures("folder")
def test_bench_hands_over_to_the_benchmark(capsys, monkeypatch):
    from pgps.benchmarks import training_step

    calls = []

    def run(out: Path, *args, **kwargs) -> dict:
        calls.append(((out, *args), kwargs))
        out.mkdir(parents=True)
        return {"versions": {"torch": None}}

    monkeypatch.setattr(training_step, "run", run)
    monkeypatch.setattr(training_step, "format_table", lambda _record: "a <table>")
    assert main(["bench", "training-step"]) == 0
    assert main(["bench", "training-step", "--quiet", "--out", "here", "--repeats", "2", "--preset", "smoke"]) == 0
    assert capsys.readouterr().out == f"a <table>\n{Path('runs/bench-1/report.html')}\n{Path('here/report.html')}\n"
    page = Path("here/report.html").read_text()
    assert "a &lt;table&gt;" in page
    assert "pgps bench training-step --quiet --out here" in page
    assert calls == [
        ((Path("runs/bench-1"), False), {"preset": training_step.FULL}),
        ((Path("here"), True), {"preset": training_step.SMOKE, "repeats": 2}),
    ]


@pytest.mark.usefixtures("folder")
def test_threads_are_those_that_are_asked_for(monkeypatch):
    from pgps.benchmarks import training_step
    from pgps.benchmarks.timing import environment, write

    def run(out: Path, *_args, **_kwargs) -> dict:
        write(out, environment())
        return {}

    monkeypatch.setattr(training_step, "run", run)
    monkeypatch.setattr(training_step, "format_table", lambda _record: "the table")
    monkeypatch.setenv("NPROC", "5")
    for folder, options in (("all", []), ("some", ["--threads", "3"])):
        assert main(["bench", "training-step", "--quiet", "--out", folder, *options]) == 0
    threads = [json.loads(Path(folder, "result.json").read_text())["machine"]["threads"] for folder in ("all", "some")]
    assert threads == [5, 3]
    assert main(["reproduce", "--list", "--threads", "2"]) == 0
    assert os.environ["NPROC"] == "2"


def test_xla_has_the_threads_that_are_asked_for():
    """Threads of its pool, by the system's count, in processes of their own without the tests' settings of XLA."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    script = (
        "import os, sys; from pgps._cli_devices import limit_threads; limit_threads(int(sys.argv[1])); import jax; "
        "jax.numpy.ones(3).sum().block_until_ready(); print(len(os.listdir('/proc/self/task')))"
    )

    def count(number: str) -> int:
        command = [sys.executable, "-c", script, number]
        return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    assert count("5") >= count("1") + 4


@pytest.mark.usefixtures("folder")
def test_bench_without_the_extra_for_reports_names_its_record(capsys, monkeypatch):
    from pgps import reporting
    from pgps.benchmarks import training_step

    def missing() -> None:
        raise ModuleNotFoundError("the report needs jinja2")

    monkeypatch.setattr(training_step, "run", lambda *_args, **_kwargs: {})
    monkeypatch.setattr(training_step, "format_table", lambda _record: "the table")
    monkeypatch.setattr(reporting, "check_installed", missing)
    assert main(["bench", "training-step", "--quiet", "--out", "here"]) == 0
    assert capsys.readouterr().out == f"{Path('here/result.json')}\n"
