"""The evidence benchmark: its smoke preset runs and goes on, its figures are what they say, and the peers are sound."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps import targets
from pgps.benchmarks import evidence, evidence_cases, evidence_page, gauntlet_cases, peers
from pgps.cli import main
from pgps.initial import Normal


def row(error, bar=None, gradients=100, **changes):
    plain = {
        "truth": 1.0,
        "complete": True,
        "log_evidence": None if error is None else 1.0 + error,
        "log_evidence_error": bar,
        "checks": {},
        "gradients": gradients,
        "values": 0,
        "seconds": 1.0,
        "warnings": [],
    }
    return plain | changes


def test_smoke_and_going_on(tmp_path, capsys):
    pytest.importorskip("blackjax")
    out = tmp_path / "out"
    argv = ["bench", "evidence", "--preset", "smoke", "--targets", "mode-discovery", "--out", str(out)]
    assert main(argv) == 0
    record = json.loads((out / "result.json").read_text())
    cells = record["summary"]["mode-discovery"]
    assert list(cells) == ["exact", "scouted", "zero", "blackjax", "nuts"]
    for name, cell in cells.items():
        assert cell["seeds"] == cell["complete"] == 2
        assert (cell["rms"] is None) == (name == "nuts")
        assert cell["gradients"] > 0
        assert set(cell["checks"]) == {"modes found", "P(x > 5)"}
    assert record["relative_cost"]["mode-discovery"]["gradients_for_same_rms"] > 0
    page = (out / "page.md").read_text()
    assert "| mode-discovery | exact |" in page
    assert "gradients for the same RMS error" in page

    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert main(argv) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before
    printed = capsys.readouterr().out
    assert printed.count("(done before)") == 5
    assert printed.splitlines()[-1] == str(out / "report.html")

    assert main([*argv, "--seeds", "5,6"]) == 2
    assert "differs in seeds" in capsys.readouterr().err


def test_a_finer_ladder_has_more_steps():
    cells = evidence.plan("smoke", ["nine-gaussians"], ["zero-0.5", "zero", "zero-0.99"], [0])
    gradients = [cell.run()[0]["gradients"] for cell in cells]
    assert gradients == sorted(set(gradients))
    assert {name for name in evidence.SAMPLERS if "-" in name}.isdisjoint(evidence.EVIDENCE.samplers)


def test_gauntlet_smoke(tmp_path, capsys):
    out = tmp_path / "out"
    argv = ["bench", "gauntlet", "--preset", "smoke", "--targets", "ring-2d", "--out", str(out)]
    assert main(argv) == 0
    record = json.loads((out / "result.json").read_text())
    [cell] = record["summary"]["ring-2d"].values()
    assert cell["seeds"] == cell["complete"] == 2
    assert cell["rms"] < 1
    assert "| ring-2d | exact |" in (out / "page.md").read_text()
    assert "wrong in silence" in capsys.readouterr().out
    assert main([*argv[:-4], "--targets", "funnel", *argv[-2:]]) == 2
    assert "did you mean funnel-10d?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ring-2d", "banana-2d", "ridge-2d", "widths-2d"])
def test_truths_of_the_gauntlet_on_a_grid(name):
    target, _ = gauntlet_cases.CASES[name].build(0)
    axes = np.linspace(-12, 14, 5201), np.linspace(-8, 12 if name != "banana-2d" else 180, 4001)
    grid = gauntlet_cases._log_sum(target, *axes)
    assert evidence_cases.true_log_evidence(target) == pytest.approx(grid, abs=2e-3)


def test_truths_of_the_gauntlet_by_importance_sampling():
    """Wider Gaussians around the maximum as proposals give Z within 4 standard errors."""
    for name, spread in (("poisson-10d", 1.3), ("logistic-50d", 1.1)):
        target, _ = gauntlet_cases.CASES[name].build(0)
        mode = jnp.zeros(target.dim)
        for _ in range(30):
            mode = mode - jnp.linalg.solve(jax.hessian(target)(mode), jax.grad(target)(mode))
        root = spread * np.linalg.cholesky(np.linalg.inv(-np.asarray(jax.hessian(target)(mode), float)))
        z = np.random.default_rng(0).normal(size=(100_000, target.dim))
        values = np.asarray(jax.vmap(target)(jnp.asarray(mode + z @ root.T)), float)
        ratios = values + 0.5 * np.sum(z**2 + np.log(2 * np.pi), axis=1) + np.linalg.slogdet(root)[1]
        shifted = np.exp(ratios - evidence_cases.true_log_evidence(target))
        error = np.std(shifted) / np.sqrt(len(shifted))
        assert error < 0.03
        assert abs(np.mean(shifted) - 1) < 4 * error


def test_truth_of_the_volatility_by_draws_of_its_prior():
    target, prior = gauntlet_cases.CASES["volatility-41d"].build(0)
    draws = np.random.default_rng(7).normal(size=(400_000, target.dim)).astype(np.float32)
    values = np.asarray(jax.jit(jax.vmap(lambda x: target(x) - prior.logdensity(x)))(draws), float)
    # Places that overflow have no mass, and are what the target is there for.
    assert np.any(values < -1e30)
    shares = np.exp(np.nan_to_num(values, nan=-np.inf) - evidence_cases.true_log_evidence(target))
    error = np.std(shares) / np.sqrt(len(shares))
    assert error < 0.1
    assert abs(np.mean(shares) - 1) < 4 * error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--targets", "funel"], "did you mean funnel?"),
        (["--samplers", "blackjacks"], "did you mean blackjax?"),
        (["--seeds", "1,1"], "--seeds must differ"),
        (["--repeats", "2"], "--repeats does not apply to evidence"),
    ],
)
def test_bad_input(tmp_path, capsys, options, said):
    assert main(["bench", "evidence", "--preset", "smoke", "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_options_of_evidence_belong_to_it(capsys):
    assert main(["bench", "baseline-step", "--targets", "funnel"]) == 2
    assert "--targets does not apply to baseline-step" in capsys.readouterr().err


def test_a_missing_peer_is_named(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "evidence", "--preset", "smoke"]) == 2
    assert "pip install 'pgps[bench]'" in capsys.readouterr().err


def test_a_folder_of_other_things_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["bench", "evidence", "--preset", "smoke", "--out", str(tmp_path)]) == 2
    assert "holds files" in capsys.readouterr().err


def test_blackjax_on_a_gaussian():
    """ln Z = 0 for a normalised N(1, 0.5^2 I) from N(0, I), within 4 standard errors over 8 seeds."""
    pytest.importorskip("blackjax")
    target = targets.GaussianMixture(jnp.ones(1), jnp.ones((1, 2)), jnp.full(1, 0.5))
    case = evidence_cases.Case(lambda _: (target, Normal(shape=(2,))))
    keys = list(jax.random.split(jax.random.key(7), 8))
    sampler = peers.BlackjaxSMC(pilot_runs=4)
    outcomes = sampler.run(case, keys, range(8), 500)
    ratios = np.exp(np.array([outcome.log_evidence for outcome in outcomes], float))
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios, ddof=1) / np.sqrt(8)
    for outcome in outcomes:
        assert outcome.complete
        # Six gradients and two values per particle and temperature.
        assert outcome.gradients == 3 * outcome.values
        assert outcome.gradients % (6 * 500) == 0


def test_blackjax_says_where_it_stopped():
    pytest.importorskip("blackjax")
    case = evidence_cases.CASES["nine-gaussians"]
    sampler = peers.BlackjaxSMC(pilot_runs=1, max_temperatures=1)
    [outcome] = sampler.run(case, [jax.random.key(0)], [0], 50)
    assert not outcome.complete
    assert outcome.log_evidence is None
    assert "after 1 temperatures" in outcome.warnings[0]


def test_summary():
    """Errors 1 and -3 with bars 1 and 1: RMS sqrt(5), sd of squares sqrt(32), one of two within 2 errors."""
    found = evidence_page.summarise([row(1.0, 1.0), row(-3.0, 1.0, gradients=300, warnings=["doubt"])])
    assert found["mean_error"] == pytest.approx(-1)
    assert found["sd"] == pytest.approx(math.sqrt(8))
    assert found["rms"] == pytest.approx(math.sqrt(5))
    assert found["rms_standard_error"] == pytest.approx(math.sqrt(32) / (2 * math.sqrt(5) * math.sqrt(2)))
    assert found["coverage"] == 0.5
    assert found["gradients"] == 200
    assert found["warned"] == 1
    assert found["silent"] == 1
    assert evidence_page.summarise([row(-3.0, 1.5), row(0.2, 0.1), row(0.2, 0.05), row(0.2), row(None)])["silent"] == 2
    assert evidence_page.summarise([row(None)])["rms"] is None
    assert evidence_page.summarise([row(0.5)])["rms_standard_error"] is None


def test_relative_cost():
    """Half the error at twice the gradients is the same error at half of them."""
    exact = evidence_page.summarise([row(0.1, gradients=200), row(-0.1, gradients=200)])
    zero = evidence_page.summarise([row(0.2), row(-0.2)])
    cost = evidence_page.relative_cost({"exact": exact, "zero": zero})
    assert cost["gradients"] == pytest.approx(2)
    assert cost["rms"] == pytest.approx(0.5)
    assert cost["gradients_for_same_rms"] == pytest.approx(0.5)
    assert evidence_page.relative_cost({"zero": zero})["gradients_for_same_rms"] is None


def test_checks_on_exact_draws():
    """Independent draws find every mode, and are as far from the truth as chance has it."""
    num = 20_000
    equal = np.zeros(num)
    mixture, _ = targets.nine_gaussians()
    assert evidence_cases.modes_found(mixture, np.asarray(mixture.sample(jax.random.key(0), num)), equal) == 9
    one = np.zeros((num, 2)) + np.asarray(mixture.means[4])
    assert evidence_cases.modes_found(mixture, one, equal) == 1
    funnel, _ = targets.funnel()
    draws = np.asarray(funnel.sample(jax.random.key(1), num))
    # 1.95 / sqrt(n) is exceeded by one sample in a thousand.
    assert evidence_cases.first_coordinate_distance(funnel, draws, equal) < 1.95 / np.sqrt(num)
    assert evidence_cases.first_coordinate_distance(funnel, draws + 3, equal) > 0.3
    wells, _ = targets.many_well()
    draws = np.asarray(wells.sample(jax.random.key(2), num))
    error = math.sqrt(wells.minor_mass * (1 - wells.minor_mass) / (num * wells.num_wells))
    assert abs(evidence_cases.minor_mass(wells, draws, equal) - wells.minor_mass) < 4 * error


def test_nuts_stands_only_where_something_is_checked(monkeypatch):
    pytest.importorskip("blackjax")
    plain = evidence_cases.Case(lambda _: targets.nine_gaussians(), most_seeds=1)
    monkeypatch.setitem(evidence_cases.CASES, "sonar", plain)
    cells = evidence.plan("full", ["funnel", "sonar"])
    assert [cell.sampler for cell in cells if cell.target == "funnel"] == ["exact", "zero", "blackjax", "nuts"]
    assert [cell.sampler for cell in cells if cell.target == "sonar"] == ["exact", "scouted", "zero", "blackjax"]
    assert {len(cell.settings["seeds"]) for cell in cells if cell.target == "sonar"} == {1}


def test_scouts_stand_only_in_few_dimensions(monkeypatch):
    many = evidence_cases.Case(lambda _: targets.forty_gaussians(61))
    monkeypatch.setitem(evidence_cases.CASES, "sonar", many)
    assert [cell.sampler for cell in evidence.plan("full", ["sonar"], ["exact", "scouted"])] == ["exact"]
