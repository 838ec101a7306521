"""Particles on many devices, in many processes, and in batches: the same results as on one device."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps import cli
from pgps.density import Problem, evaluate_target
from pgps.spread import Spread

PROGRAM = Path(__file__).with_name("spread_program.py")


def begin(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*programs: subprocess.Popen[str]) -> None:
    outputs = [program.communicate(timeout=300)[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * len(programs), "\n".join(outputs)


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of each method on one device and on four, and of the cheap ones on two."""
    folder = tmp_path_factory.mktemp("devices")
    finish(begin(folder, 4))
    return folder


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two processes with one device each."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    finish(*[begin(folder, 1, coordinator, 2, process) for process in (0, 1)])
    return folder


def assert_same(one: Path, other: Path) -> None:
    """Equal but for rounding in double precision, which moves have not blown up over the few steps here."""
    with np.load(one) as a, np.load(other) as b:
        np.testing.assert_array_equal(a["evaluations"], b["evaluations"])
        for name in ("particles", "log_weights", "log_evidence", "ess"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("method", "devices"), [("smc", 2), ("smc", 4), ("svgd", 4), ("exact", 4), ("paper", 4)])
def test_many_devices_give_what_one_gives(on_devices: Path, method: str, devices: int):
    assert_same(on_devices / f"{method}-1.npz", on_devices / f"{method}-{devices}.npz")
    with np.load(on_devices / f"{method}-{devices}.npz") as result:
        assert result["num_shards"] == devices


def test_two_processes_give_what_one_gives(on_devices: Path, in_processes: Path):
    assert_same(on_devices / "smc-1.npz", in_processes / "smc-2.npz")


@pytest.mark.parametrize("method", ["smc", "exact"])
def test_effective_sample_size_of_a_divided_population_is_that_of_the_gathered_one(on_devices: Path, method: str):
    with np.load(on_devices / f"{method}-4.npz") as result:
        weights = np.exp(result["log_weights"])
        np.testing.assert_allclose(result["ess"], weights.sum() ** 2 / (weights**2).sum(), rtol=1e-9)


def test_batches_evaluate_every_particle_once():
    target, initial = pgps.targets.nine_gaussians()
    problem = Problem.of(target, initial)
    particles = problem.draw(jax.random.key(0), 10)
    whole = evaluate_target(particles, problem)
    for size in (1, 3, 10, 99):
        batched = evaluate_target(particles, Problem.of(target, initial, Spread(batch_size=size)))
        np.testing.assert_allclose(batched.score, whole.score, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(batched.logdensity, whole.logdensity, rtol=1e-6)


def test_batches_bound_the_memory_of_an_evaluation():
    def wide(x: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.cos(x[:, None] * jnp.arange(10_000.0)) ** 2) / 10_000

    def temporary_bytes(batch_size: int | None) -> int:
        problem = Problem.of(wide, pgps.Normal(jnp.zeros(2), 1.0), Spread(batch_size=batch_size))
        program = jax.jit(lambda x: evaluate_target(x, problem).score).lower(jnp.zeros((400, 2))).compile()
        analysis = program.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    whole, batched = temporary_bytes(None), temporary_bytes(10)
    assert batched < whole / 10


def test_a_mesh_of_one_device_is_like_none():
    target, initial = pgps.targets.nine_gaussians()
    method, key, one = pgps.methods.Langevin(0.01, 3), jax.random.key(0), jax.make_mesh((1,), ("particles",))
    a, b = [pgps.sample(target, initial, key=key, num_particles=10, method=method, mesh=mesh) for mesh in (None, one)]
    np.testing.assert_array_equal(a.particles, b.particles)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": 4}, "mesh must be one of jax.make_mesh"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"mesh": "one", "num_particles": 7}, "num_particles must be a multiple of 2 on 1 devices, got 7; take 8"),
    ],
)
def test_a_spread_that_cannot_be_is_an_error(settings: dict, message: str):
    if settings.get("mesh") == "one":
        settings = settings | {"mesh": jax.make_mesh((1,), ("particles",))}
    with pytest.raises((TypeError, ValueError), match=message):
        pgps.sample(lambda x: -jnp.sum(x**2), pgps.Normal(jnp.zeros(2), 1.0), key=jax.random.key(0), **settings)


def test_command_line_spreads_particles(tmp_path: Path):
    model = tmp_path / "model.py"
    model.write_text("def logdensity(x):\n    return -0.5 * (x**2).sum()\n", encoding="utf-8")
    command = [sys.executable, "-m", "pgps", "sample", f"{model}:logdensity", "--dim", "1", "--particles", "40"]
    command += ["--method", "training-free", "--dt", "0.5", "--langevin-steps", "1", "--quiet"]
    for name, options in {"one": [], "two": ["--devices", "2", "--batch-size", "7"]}.items():
        done = subprocess.run([*command, *options, "--out", tmp_path / name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = [pgps.load(tmp_path / name) for name in ("one", "two")]
    np.testing.assert_allclose(one.particles, two.particles, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--devices 2", "--devices must be at most 1 here, got 2"),
        ("--devices 1 --particles 41", "--particles must be a multiple of 2 on 1 devices, got 41; take 40"),
        ("--processes 2 --process 1", "--coordinator must be given, too"),
        ("--processes 2 --process 2 --coordinator localhost:1", "--process must be below --processes 2, got 2"),
        ("--processes 2 --process 0 --coordinator localhost:1 --devices 3", "--devices must be a multiple of"),
        ("--batch-size 0", "--batch-size: must be a whole number of at least 1"),
    ],
)
def test_command_line_refuses_a_spread_that_cannot_be(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model, out = tmp_path / "model.py", tmp_path / "out"
    model.write_text("def logdensity(x):\n    return -0.5 * (x**2).sum()\n", encoding="utf-8")
    jax.device_count()
    argv = ["sample", f"{model}:logdensity", "--dim", "1", "--out", str(out), *options.split()]
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
