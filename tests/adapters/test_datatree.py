"""Results as a DataTree: its groups, weights, names and attributes; NetCDF and back; ArviZ reads it."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps.density import Evaluations

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false

NUM = 400
# Weights that turn standard normal particles into N(1, 1).
X = np.random.default_rng(0).standard_normal(NUM).astype(np.float32)
LOG_WEIGHTS = X - np.log(np.sum(np.exp(X)))
ESS = float(1 / np.sum(np.exp(2 * LOG_WEIGHTS)))


def a_result(**changes: Any) -> pgps.Result:
    """A result with weights, made by hand."""
    result = pgps.Result(
        particles={"mu": jnp.asarray(X), "theta": jnp.asarray(X[:, None] + np.arange(3.0, dtype=np.float32))},
        log_weights=jnp.asarray(LOG_WEIGHTS),
        status=pgps.Status.COMPLETED,
        t=1.0,
        num_evaluations=Evaluations(values=0, gradients=1234),
        trace={"t": np.array([0.4, 1.0]), "converged": np.array([True, False]), "ess": np.array([300.0, ESS])},
        warnings=("be wary", "be warier"),
        provenance={
            "key": [0, 7],
            "seconds": 1.5,
            "created": "2024-07-01T00:00:00+00:00",
            "versions": {"pgps": pgps.__version__, "jax": jax.__version__},
            "num_particles": NUM,
        },
        ess=ESS,
        log_evidence=-3.5,
        log_evidence_error=0.1,
        families=jnp.arange(NUM),
    )
    return dataclasses.replace(result, **changes)


def test_particles_are_all_there_with_their_weights():
    result = a_result()
    particles = result.to_datatree()["particles"]
    np.testing.assert_array_equal(particles["mu"], result.particles["mu"])
    np.testing.assert_array_equal(particles["theta"], result.particles["theta"])
    np.testing.assert_array_equal(particles["log_weight"], result.log_weights)
    np.testing.assert_array_equal(particles["family"], np.arange(NUM))
    assert particles["theta"].dims == ("particle", "theta_dim_0")
    without = a_result(families=None).to_datatree()
    assert "family" not in without["particles"]


def test_draws_are_equally_weighted_and_as_many_as_the_particles_are_worth():
    draws = a_result().to_datatree()["posterior"]["mu"]
    assert draws.dims == ("chain", "draw")
    assert draws.shape == (1, round(ESS))
    values = draws.values[0]
    # Weighted to N(1, 1): four standard errors, with as many draws as the weights are worth.
    assert abs(values.mean() - 1) < 4 * np.sqrt(2 / ESS)
    assert set(values) <= set(X)
    # Of one law from first to last: resampled particles are in order, draws are not.
    half = len(values) // 2
    assert abs(values[:half].mean() - values[half:].mean()) < 4 * np.sqrt(2 / half)
    assert len(a_result().to_datatree(num_draws=50)["posterior"]["draw"]) == 50


def test_particles_without_weights_are_drawn_once_each():
    result = a_result(log_weights=jnp.zeros(NUM), ess=None, log_evidence=None, families=None)
    tree = result.to_datatree()
    np.testing.assert_array_equal(np.sort(tree["posterior"]["mu"].values[0]), np.sort(X))
    assert "log_evidence" not in tree.attrs
    outside = jnp.where(jnp.arange(NUM) < 100, -jnp.inf, 0.0)
    kept = a_result(log_weights=outside, ess=None).to_datatree()["posterior"]["mu"]
    assert not set(kept.values[0]) & set(X[:100])


def test_the_same_result_gives_the_same_draws_and_a_key_others():
    first, again = (a_result().to_datatree()["posterior"] for _ in range(2))
    other = a_result().to_datatree(key=jax.random.key(1))["posterior"]
    assert first.equals(again)
    assert not first.equals(other)


def test_path_stats_hold_the_trace():
    stats = a_result().to_datatree()["path_stats"]
    assert set(stats.data_vars) == {"t", "converged", "ess"}
    np.testing.assert_array_equal(stats["t"], [0.4, 1.0])
    assert stats["t"].dims == ("step",)


def test_dimensions_and_labels_are_the_users():
    tree = a_result().to_datatree(dims={"theta": ["school"]}, coords={"school": ["a", "b", "c"]})
    for group in ("posterior", "particles"):
        assert tree[group]["theta"].dims[-1] == "school"
        assert list(tree[group]["school"].values) == ["a", "b", "c"]


def test_names_come_from_any_pytree():
    nested = {"layers": [{"w": jnp.zeros((NUM, 2, 2))}, {"w": jnp.zeros(NUM)}], "b": jnp.zeros(NUM)}
    assert set(a_result(particles=nested).to_datatree()["posterior"].data_vars) == {"layers.0.w", "layers.1.w", "b"}
    assert set(a_result(particles=jnp.zeros((NUM, 2))).to_datatree()["posterior"].data_vars) == {"x"}
    doubled = a_result().to_datatree(constrain=lambda x: {"twice": 2 * x["mu"]})
    assert set(doubled["posterior"].data_vars) == {"twice"}
    np.testing.assert_array_equal(doubled["particles"]["twice"], 2 * X)


def test_netcdf_and_back(tmp_path: Path):
    tree = a_result().to_datatree(dims={"theta": ["school"]}, coords={"school": ["a", "b", "c"]})
    tree.to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "result.nc", engine="h5netcdf") as back:
        assert set(back.children) == {"posterior", "particles", "path_stats"}
        for group in back.children:
            xarray.testing.assert_equal(back[group].to_dataset(), tree[group].to_dataset())
        for attrs in (back.attrs, back["posterior"].attrs):
            assert attrs["inference_library"] == "pgps"
            assert attrs["log_evidence"] == -3.5
            assert attrs["status"] == "completed"
            assert attrs["warnings"] == "be wary\nbe warier"
            assert json.loads(attrs["provenance"]) == a_result().provenance


@pytest.mark.filterwarnings("default")
def test_arviz_reads_it(tmp_path: Path):
    pytest.importorskip("matplotlib").use("agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ 0.23 announces ArviZ 1 when it is imported.
        az: Any = pytest.importorskip("arviz")
    a_result().to_datatree().to_netcdf(tmp_path / "result.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "result.nc", engine="h5netcdf") as tree:
        # ArviZ 1 has no type of its own.
        data = az.from_datatree(tree) if hasattr(az, "from_datatree") else tree
        table = az.summary(data, round_to=6)
        assert list(table.index) == ["mu", "theta[0]", "theta[1]", "theta[2]"]
        draws = tree["posterior"]["mu"].values
        assert abs(float(table.loc["mu", "mean"]) - draws.mean()) < 1e-3
        # Particles are no chains, so that there is no R-hat to be reassured by.
        assert np.isnan(float(table.loc["mu", "r_hat"]))
        assert az.plot_pair(data, var_names=["mu", "theta"]) is not None


def test_a_run_that_stopped_has_no_posterior():
    with pytest.warns(pgps.PGPSWarning, match=r"stopped at t = 0.25 \(step_limit\)"):
        tree = a_result(status=pgps.Status.STEP_LIMIT, t=0.25).to_datatree()
    assert set(tree.children) == {"particles", "path_stats"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_draws": NUM + 1}, "num_draws must be at most 400"),
        ({"num_draws": 0}, "num_draws must be at least 1"),
        ({"dims": {"tau": ["school"]}}, "dims must name variables among mu, theta, got 'tau'"),
        ({"dims": {"theta": ["a", "b"]}}, r"dims\['theta'\] must have 1 names, for the shape \(3,\)"),
        ({"coords": {"school": [1, 2, 3]}}, "coords must be of dimensions among theta_dim_0, got 'school'"),
        ({"coords": {"theta_dim_0": [1, 2]}}, r"coords\['theta_dim_0'\] must have 3 labels, got 2"),
        ({"constrain": lambda x: {"draw": x["mu"]}}, "names of their own, .* got 'draw'"),
        ({"constrain": lambda x: {"a/b": x["mu"]}}, "got 'a/b'"),
    ],
)
def test_misuse_is_named(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        a_result().to_datatree(**arguments)


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs xarray.*pip install 'pgps\[arviz\]'"):
        a_result().to_datatree()
