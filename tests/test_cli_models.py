"""`pgps sample` of models and with data, and options from a file."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import pgps
from pgps.cli import main

FILE = """\
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

def line(x, y, sd):
    return -0.5 * jnp.sum(((y - x[0]) / sd) ** 2)

def anything(x, **data):
    return -0.5 * jnp.sum(x**2) + 0 * len(data)

def model(y, sd):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean, sd), obs=y)

def discrete(y, sd):
    numpyro.sample("k", dist.Bernoulli(0.5))

def observed(y, sd):
    numpyro.sample("y", dist.Normal(0.0, sd), obs=y)

def improper(y, sd):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mean, sd), obs=y)

def broken(y, sd):
    numpyro.sample("mean", missing)

from math import log
CONSTANT = 3
"""
PYMC_FILE = """\
import numpy as np
import pymc as pm

def model(y, sd) -> pm.Model:
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 10.0)
        pm.Deterministic("twice", 2 * mean)
        pm.Normal("y", mean, sd, observed=y)
    return model

def undeclared(y, sd):
    return model(y, sd)

def broken(y, sd) -> "pm.Model":
    return missing

with pm.Model() as discrete:
    pm.Normal("y", pm.Bernoulli("k", 0.5), 1.0, observed=np.zeros(3))
with pm.Model() as observed:
    pm.Normal("y", 0.0, 1.0, observed=np.zeros(3))
with pm.Model() as improper:
    pm.Normal("y", pm.Flat("mean"), 1.0, observed=np.zeros(3))
ready = model(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 1.0]))
"""
ROWS = {"y": [1.0, 2.0, 4.0], "sd": [1, 2, 1]}
FAST = "--method training-free --dt 0.1 --langevin-steps 20 --step-size 0.2 --particles 300"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "file.py").write_text(FILE)
    (tmp_path / "rows.csv").write_text("y,sd\n1.0,1\n2.0,2\n4.0,1\n")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    np.savez(tmp_path / "rows.npz", y=np.array(ROWS["y"]), sd=np.array(ROWS["sd"]))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("pgps_target_")]:
        del sys.modules[name]


@pytest.fixture
def sampled(monkeypatch) -> list[dict]:
    """What `pgps.sample` was called with; it does not run."""
    calls = []

    def record(logdensity_fn, initial, *, num_particles=0, **settings):
        calls.append({"logdensity_fn": logdensity_fn, "initial": initial, "num_particles": num_particles, **settings})
        raise ValueError("method seen")

    monkeypatch.setattr(pgps, "sample", record)
    return calls


def misuse(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("pgps: error: ")
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists()
    return captured.err


@pytest.mark.parametrize("kind", ["csv", "json", "npz"])
def test_data_reach_a_plain_function_by_name(kind: str, sampled: list[dict], capsys):
    assert "method seen" in misuse(f"sample file.py:line --dim 1 --data rows.{kind}", capsys)
    assert float(sampled[0]["logdensity_fn"](np.array([1.0]))) == pytest.approx(-0.5 * (0 + 0.25 + 9))


def test_a_numpyro_model_is_sampled_in_its_own_variables(capsys):
    assert main(f"sample file.py:model --data rows.csv --out out {FAST}".split()) == 0
    result = pgps.load("out")
    assert set(result.particles) == {"mean", "twice"}
    # The posterior is Gaussian: precision 1/100 + 1 + 1/4 + 1, and the mean of the rows weighed by it.
    precision = 2.26
    means = np.asarray(result.particles["mean"])
    assert abs(means.mean() - 5.5 / precision) < 4 / np.sqrt(precision * len(means)) + 0.05
    np.testing.assert_allclose(result.particles["twice"], 2 * means, rtol=1e-6)
    with np.load("out/frames.npz") as frames:
        assert frames["positions"].shape[2] == 2
    assert "mean" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_pymc_model_is_sampled_in_its_own_variables(capsys):
    pytest.importorskip("pymc")
    Path("pymc_file.py").write_text(PYMC_FILE)
    assert main(f"sample pymc_file.py:model --data rows.csv --out out {FAST}".split()) == 0
    assert main(f"sample pymc_file.py:ready --out ready {FAST}".split()) == 0
    result = pgps.load("out")
    means, precision = np.asarray(result.particles["mean"]), 2.26
    assert means.dtype == np.float32
    assert abs(means.mean() - 5.5 / precision) < 4 / np.sqrt(precision * len(means)) + 0.05
    np.testing.assert_allclose(result.particles["twice"], 2 * means, rtol=1e-6)
    np.testing.assert_allclose(pgps.load("ready").particles["mean"], means, rtol=1e-4)
    for command, words in (
        ("discrete", "must have continuous free variables, but 'k' is discrete"),
        ("observed", "must have a free variable, but all its variables are observed"),
        ("improper --initial prior", "--initial cannot be the prior of this model: a variable is improper"),
        ("undeclared --data rows.csv", "calls numpyro.sample nowhere"),
        ("broken --data rows.csv", "pymc_file.py:broken fails as a model (NameError: name 'missing' is not defined)"),
        ("ready --data rows.csv", "--data rows.csv is of no use to pymc_file.py:ready"),
    ):
        assert words in misuse(f"sample pymc_file.py:{command}", capsys)


def test_the_prior_may_be_asked_for(sampled: list[dict], capsys):
    misuse("sample file.py:model --data rows.csv --initial prior", capsys)
    misuse("sample file.py:model --data rows.csv", capsys)
    asked, left_out = (call["initial"].sample(jax.random.key(0)) for call in sampled)
    assert asked == left_out


def test_the_written_options_make_the_same_run_again():
    command = "sample file.py:line --dim 1 --data rows.csv --initial normal:-1,2 --seed 5 --quiet"
    assert main(f"{command} --out first {FAST}".split()) == 0
    assert main(["sample", "--config", "first/config.toml", "--quiet", "--out", "second"]) == 0
    first, second = pgps.load("first"), pgps.load("second")
    np.testing.assert_array_equal(first.particles, second.particles)
    texts = [Path(name, "config.toml").read_text() for name in ("first", "second")]
    assert texts[0] == texts[1]
    assert "out" not in texts[0]


def test_the_command_line_goes_before_the_file(sampled: list[dict], capsys):
    text = 'target = "file.py:anything"\ndim = 3\nparticles = 7\nseed = 2\nalpha = 0.25\nquiet = true\n'
    Path("run.toml").write_text(text)
    misuse("sample --config run.toml --particles 9 --shape 2,2", capsys)
    misuse("sample file.py:line --config run.toml --data rows.csv", capsys)
    first, second = sampled
    assert first["num_particles"] == 9
    assert first["initial"] == pgps.Normal(0.0, 1.0, shape=(2, 2))
    assert first["method"] == pgps.exact(alpha=0.25)
    assert first["progress"] is False
    assert second["num_particles"] == 7
    assert second["logdensity_fn"].func.__name__ == "line"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dimm = 2", ["'dimm'", "did you mean 'dim'?"]),
        ("max_evaluations = 2", ["'max_evaluations'", "'max-evaluations'"]),
        ("dim = ", ["run.toml cannot be read"]),
        ("quiet = 3", ["'quiet' must be true or false, got 3"]),
        ("dim = true", ["'dim' must be a number or a text, got True"]),
        ("dim = {a = 1}", ["'dim' must be a number or a text"]),
        ('dim = "x"', ["--dim", "'x'"]),
        ('out = "a\\u0000b"', ["--out", "null"]),
        ('method = "--"', ["--method", "'--'"]),
        (f"dim = {'[' * 3000}", ["run.toml cannot be read"]),
    ],
)
def test_a_file_of_options_that_is_wrong(text: str, words: list[str], capsys):
    Path("run.toml").write_text(text)
    error = misuse("sample file.py:anything --config run.toml", capsys)
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sample --config none.toml", ["none.toml cannot be read", "No such file"]),
        ("sample file.py:line --dim 1", ["file.py:line needs y, sd, but there is no --data FILE"]),
        ("sample file.py:line --dim 1 --data none.csv", ["--data must name a file that exists", "none.csv"]),
        ("sample file.py:line --dim 1 --data file.py", ["--data must end in .csv, .npz, .json", "file.py"]),
        ("sample file.py:model", ["file.py:model needs y, sd"]),
        (
            "sample file.py:model --data rows.csv --initial normal:0",
            ["--initial must be normal:MEAN,SCALE", "'normal:0'"],
        ),
        ("sample file.py:model --data rows.csv --initial normal:0,-1", ["--initial normal:0,-1: scale"]),
        ("sample file.py:discrete --data rows.csv", ["must have continuous latent variables", "'k'"]),
        (
            "sample file.py:observed --data rows.csv",
            ["must have a latent variable", "all its sample sites"],
        ),
        (
            "sample file.py:improper --data rows.csv --initial prior",
            ["--initial cannot be the prior of improper: that of 'mean' (ImproperUniform) is improper"],
        ),
        ("sample file.py:line --dim 1 --data rows.csv --initial prior", ["--initial prior is for models"]),
        ("sample file.py:broken --data rows.csv", ["file.py:broken fails as a model (NameError: name 'missing'"]),
        ("sample file.py:log --dim 1", ["file.py:log must be a Python function", "built-in"]),
        ("sample file.py:CONSTANT", ["file.py:CONSTANT: model must be a pymc.Model, got 3"]),
        ("sample file.py:CONSTANT --data rows.csv", ["--data rows.csv is of no use to file.py:CONSTANT"]),
        ("sample file.py:CONSTANT --dim 2", ["must name a function", "3"]),
    ],
)
def test_a_model_or_data_that_cannot_be_had(command: str, words: list[str], capsys):
    if "CONSTANT" in command:
        pytest.importorskip("pymc")
    error = misuse(command, capsys)
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.csv", "y,sd\n", "a header and no rows"),
        ("a.csv", "", "it is empty"),
        ("a.csv", "y,sd\n1\n", "row 1 has 1 cells, the header 2"),
        ("a.csv", "y,y\n1,2\n", "two columns have one name"),
        ("a.csv", "y,sd\n1,x\n", "column 'sd' holds cells that are not numbers"),
        ("a.csv", "y,sd\n1,nan\n", "'sd' must be finite"),
        ("a.csv", "y,sd,other\n1,1,1\n", "has other, but file.py:line takes y, sd"),
        ("a.csv", "y\n1\n", "needs sd, but --data a.csv has y"),
        ("a.json", "[1, 2]", "must be an object"),
        ("a.json", "{", "cannot be read"),
        ("a.json", '{"y": [1], "sd": ["a"]}', "'sd' must be numbers"),
        ("a.npz", "not an archive", "cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read (RecursionError"),
    ],
)
def test_data_that_are_wrong(name: str, text: str, word: str, capsys):
    Path(name).write_text(text)
    assert word in misuse(f"sample file.py:line --dim 1 --data {name}", capsys)


def test_objects_in_an_archive_are_not_unpickled(capsys):
    np.savez("a.npz", y=np.array([{"a": 1}], dtype=object))
    assert "cannot be read" in misuse("sample file.py:line --dim 1 --data a.npz", capsys)


def test_one_array_without_a_name(capsys):
    np.save("a.npy", np.arange(3.0))
    Path("a.npy").rename("a.npz")
    assert "one array without a name" in misuse("sample file.py:line --dim 1 --data a.npz", capsys)


def test_a_truncated_archive(capsys):
    Path("a.npz").write_bytes(Path("rows.npz").read_bytes()[:60])
    assert "cannot be read" in misuse("sample file.py:line --dim 1 --data a.npz", capsys)
