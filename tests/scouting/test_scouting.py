"""Maxima by ascents, the second opinion on a sample, and the law that covers what was found."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal, norm
from scipy.spatial import KDTree

import pgps
from pgps import adjustments, cli, fields, outcome, scouting, targets, trainers
from pgps.density import Evaluations, Problem
from pgps.scouting import Around, Scouting, accounts_for_evidence, differences
from pgps.scouting import maxima as maxima_module
from pgps.scouting.ascents import ascend

FEW = Scouting(num_draws=400, num_starts=16, num_steps=40)
COVARIANCE = np.array([[4.0, 1.5], [1.5, 1.0]])


def correlated(x: jax.Array) -> jax.Array:
    return jnp.asarray(multivariate_normal.logpdf(x, jnp.array([1.0, -2.0]), jnp.asarray(COVARIANCE))) + 3.0


def wide_and_narrow(x: jax.Array) -> jax.Array:
    """Two modes of equal mass, one ten times as wide as the other."""
    wide, narrow = jnp.sum(norm.logpdf(x, -3.0, 1.0)), jnp.sum(norm.logpdf(x, 3.0, 0.1))
    return jnp.logaddexp(wide, narrow) - jnp.log(2.0)


INITIAL = pgps.Normal(jnp.zeros(2), 3.0)
QUICK = {"field": fields.Affine(), "moves": adjustments.MALA(precondition=True, mixing=0.4)}


def test_ascents_end_at_the_top_with_its_covariance(x64: None):
    starts = jax.random.normal(jax.random.key(0), (5, 2)) * 3
    ascents, num_steps = ascend(correlated, starts, jnp.ones(2), 40)
    assert num_steps <= 40
    np.testing.assert_allclose(ascents.x, np.tile([1.0, -2.0], (5, 1)), atol=1e-2)
    for covariance in ascents.covariance:
        np.testing.assert_allclose(covariance, COVARIANCE, rtol=0.05)


@pytest.mark.parametrize("most", [7, 100])
def test_ascent_makes_one_gradient_call_per_step(most: int):
    calls = []

    def counted(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda _: calls.append(1), x[0])
        return -jnp.sum(jnp.cosh(x))

    _, num_steps = jax.block_until_ready(ascend(counted, jnp.ones((3, 2)), jnp.ones(2), most))
    jax.effects_barrier()
    assert len(calls) == 3 * num_steps
    # The search ends when all have arrived.
    assert num_steps == most if most == 7 else num_steps < 30


def test_ascent_from_outside_the_support_finds_nothing():
    def half(x: jax.Array) -> jax.Array:
        return jnp.where(x[0] > 0, -jnp.sum((x - 1) ** 2), -jnp.inf)

    ascents, _ = ascend(half, jnp.array([[-1.0], [2.0]]), jnp.ones(1), 30)
    assert ascents.value[0] == -jnp.inf
    np.testing.assert_allclose(ascents.x[1], 1.0, atol=1e-3)


@pytest.mark.parametrize("dim", [1, 4])
def test_ascents_start_from_draws_above_their_neighbours(dim: int):
    x = jax.random.normal(jax.random.key(0), (300, dim))
    values = jnp.where(x[:, 0] > -1.5, jnp.sum(jnp.cos(4 * x), axis=1), jnp.nan)
    heights = np.where(np.isfinite(values), values, -np.inf)
    _, neighbours = KDTree(np.asarray(x)).query(np.asarray(x), 10)
    is_peak = heights >= heights[neighbours].max(axis=1)
    # An eighth of the starts is for those that are far.
    is_far = np.arange(300) >= 200
    order = np.lexsort((-heights, ~is_peak))
    expected = [*order[~is_far[order]][:35], *order[is_far[order]][:5]]
    assert 3 < np.count_nonzero(is_peak) < 100
    np.testing.assert_array_equal(maxima_module._starts(x, values, is_far, 40), expected)


def test_a_mode_far_from_the_initial_law_is_found():
    far = targets.GaussianMixture(jnp.full(2, 0.5), jnp.array([[0.0, 0.0], [25.0, 25.0]]), jnp.ones(2))
    maxima = Scouting().maxima(Problem.of(far, pgps.Normal(jnp.zeros(2), 1.0)), jax.random.key(0))
    np.testing.assert_allclose(np.sort(maxima.centers[:, 0]), [0, 25], atol=0.1)


def test_maxima_are_distinct_and_have_the_widths_of_their_modes():
    maxima = FEW.maxima(Problem.of(wide_and_narrow, INITIAL), jax.random.key(0))
    order = np.argsort(maxima.centers[:, 0])
    np.testing.assert_allclose(maxima.centers[order], [[-3, -3], [3, 3]], atol=0.05)
    for root, width in zip(maxima.roots[order], (1.0, 0.1), strict=True):
        np.testing.assert_allclose(root @ root.T, width**2 * np.eye(2), atol=0.05 * width**2)


def test_a_density_without_a_maximum_has_none():
    maxima = FEW.maxima(Problem.of(lambda x: jnp.sum(x), INITIAL), jax.random.key(0))
    assert len(maxima.centers) == 0
    with pytest.raises(ValueError, match="logdensity_fn has no maximum"):
        pgps.scouted(lambda x: jnp.sum(x), INITIAL, key=jax.random.key(0), scouting=FEW)


def look(particles: np.ndarray, log_evidence: float, error: float = 0.01) -> tuple[Around, Evaluations]:
    n = len(particles)
    problem = Problem.of(wide_and_narrow, INITIAL)
    around, maxima, evaluations = FEW.look(
        problem, jax.random.key(1), particles, np.zeros(n), np.arange(n), log_evidence, error
    )
    assert len(maxima.centers) == 2
    return around, evaluations


def exact_draws(share_of_narrow: float, n: int = 4000) -> np.ndarray:
    generator = np.random.default_rng(0)
    narrow = np.arange(n) < share_of_narrow * n
    noise = generator.standard_normal((n, 2))
    return np.where(narrow[:, None], 3 + 0.1 * noise, -3 + noise).astype(np.float32)


def test_integrals_agree_with_exact_samples():
    around, evaluations = look(exact_draws(0.5), 0.0)
    # Each ellipsoid holds 90% of a mode of mass 0.5.
    errors = np.hypot(around.integrated_errors, 0.01)
    np.testing.assert_array_less(np.abs(around.integrated - 0.45), 4 * errors)
    np.testing.assert_array_less(np.abs(around.sampled - 0.45), 4 * np.sqrt(0.45 * 0.55 / 4000))
    assert differences(around) == []
    assert evaluations.values == 400 + 2 * FEW.num_integrated
    # The ascents, and differences along the axes around a batch of eight maxima.
    assert 16 * 10 <= evaluations.gradients - 8 * 2 * 2 <= 16 * 40


@pytest.mark.parametrize(
    ("share", "log_evidence"),
    [(0.0, np.log(0.5)), (0.2, 0.0), (0.8, 0.0)],
    ids=["a mode lost", "too light", "too heavy"],
)
def test_wrong_masses_are_doubted(share: float, log_evidence: float):
    around, _ = look(exact_draws(share), log_evidence)
    [doubt] = differences(around)
    assert "modes are missing or have wrong masses" in doubt
    assert "pgps.scouted(" in doubt


@pytest.mark.parametrize(("log_evidence", "error"), [(np.log(0.5), 0.49), (-600.0, 0.01), (-2000.0, 0.01)])
def test_a_lost_mode_is_seen_whatever_its_mass_and_the_evidences_error(log_evidence: float, error: float):
    [doubt] = differences(look(exact_draws(0.0), log_evidence, error)[0])
    assert "modes are missing" in doubt
    assert len(doubt) < 400


def test_an_uncertain_evidence_is_no_reason_for_doubt():
    around, _ = look(exact_draws(0.5), -0.3, 0.3)
    assert differences(around) == []


def test_integrals_account_for_the_evidence_of_exact_samples_alone():
    draws = exact_draws(0.5)
    assert accounts_for_evidence(look(draws, 0.0)[0])
    # An evidence that is too low by a fifth, masses that are wrong by as much, or a third of the mass somewhere else.
    assert not accounts_for_evidence(look(draws, -0.2)[0])
    assert not accounts_for_evidence(look(draws, 0.2)[0])
    elsewhere = np.where(np.arange(len(draws))[:, None] % 3 == 0, 20.0, draws).astype(np.float32)
    assert not accounts_for_evidence(look(elsewhere, np.log(1.5))[0])
    # One that is not known so well.
    assert not accounts_for_evidence(look(draws, 0.0, 0.3)[0])


def test_moves_between_modes_are_not_asked_for_where_integrals_account_for_the_evidence():
    method = pgps.exact()
    trace = {"t": np.ones(1), "covered": np.zeros(1), "adjustment_steps": np.array([20])}
    [doubt] = outcome._settled(outcome.Opinion(accounts_for_evidence=True), method, trace)
    assert doubt.startswith("the last moves covered 0%")
    assert outcome._settled(outcome.Opinion(), method, trace) == []
    assert outcome._settled(outcome.Opinion(accounts_for_evidence=True), method, trace | {"covered": np.ones(1)}) == []


def test_scouts_keep_to_the_limit_of_evaluations():
    method = pgps.exact(0.0, 1.0, field=fields.Affine(), moves=adjustments.MALA(), scouting=FEW)
    start, key = pgps.Normal(jnp.zeros(2), 2.0), jax.random.key(0)
    free = pgps.sample(correlated, start, key=key, num_particles=100, method=method)
    limited = pgps.sample(
        correlated,
        start,
        key=key,
        num_particles=100,
        method=method,
        max_evaluations=int(free.num_evaluations.total) - 1,
    )
    assert limited.status == pgps.Status.COMPLETED
    assert limited.log_evidence == free.log_evidence
    spared = free.num_evaluations.total - limited.num_evaluations.total
    assert FEW.num_draws < spared <= FEW.most_evaluations(2)


def test_a_density_that_fails_where_scouts_look_costs_no_result():
    def checked(x: np.ndarray) -> np.ndarray:
        if np.any(np.abs(x) > 12):
            raise RuntimeError("far away")
        return np.zeros((), np.float32)

    def fragile(x: jax.Array) -> jax.Array:
        shape, x_only = jax.ShapeDtypeStruct((), jnp.float32), jax.lax.stop_gradient(x)
        return correlated(x) + jax.pure_callback(checked, shape, x_only, vmap_method="sequential")

    method = pgps.exact(0.0, 1.0, field=fields.Zero(), trainer=trainers.NoTraining(), moves=adjustments.MALA())
    with pytest.warns(pgps.PGPSWarning, match="there is no second opinion"):
        result = pgps.sample(
            fragile, pgps.Normal(jnp.zeros(2), 2.0), key=jax.random.key(0), num_particles=40, method=method
        )
    assert result.status == pgps.Status.COMPLETED
    assert result.log_evidence is not None


def gumbel(x: jax.Array) -> jax.Array:
    """Its log-density overflows above 88."""
    return jnp.sum(x - jnp.exp(x))


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_overflow_far_out_is_no_edge_that_would_excuse_particles_from_being_at_rest(monkeypatch: pytest.MonkeyPatch):
    looked = []
    monkeypatch.setattr("pgps.outcome._unrest", lambda *_: looked.append(1) or [])
    initial = pgps.Normal(0.0, 30.0, shape=(1,))
    draws = jax.vmap(initial.sample)(jax.random.split(jax.random.key(0), 1000))
    assert np.any(np.isneginf(jax.vmap(gumbel)(3 * draws)))
    pgps.sample(gumbel, initial, key=jax.random.key(0), num_particles=100, method=pgps.exact(scouting=FEW, **QUICK))
    assert looked == [1]


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_default_run_that_lost_a_mode_says_so():
    method = pgps.exact(**QUICK, scouting=Scouting(again=False))
    result = pgps.sample(wide_and_narrow, INITIAL, key=jax.random.key(100), num_particles=400, method=method)
    assert result.log_evidence is not None
    right = abs(result.log_evidence) < 0.2
    assert right or result.warnings
    assert any("maxima of the density" in doubt for doubt in result.warnings) != right


def test_scouted_law_is_normalised_and_draws_what_it_says(x64: None):
    law = pgps.scouted(wide_and_narrow, pgps.Normal(jnp.zeros(2), 3.0), key=jax.random.key(0), scouting=FEW)
    assert law.maxima.shape == (2, 2)
    draws = jax.vmap(law.sample)(jax.random.split(jax.random.key(1), 20_000))
    # E[q / p] under p is the integral of q; with q a Gaussian that p covers.
    wide = pgps.Normal(jnp.zeros(2), 2.0)
    ratios = np.exp(np.asarray(jax.vmap(lambda x: wide.logdensity(x) - law.logdensity(x))(draws)))
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / np.sqrt(len(ratios))
    near = np.linalg.norm(np.asarray(draws) - 3, axis=1) < 0.5
    # Half of it is Gaussians, of which the narrow mode has half by its mass.
    assert abs(near.mean() - 0.25) < 0.02


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_run_from_a_scouted_law_finds_both_modes():
    law = pgps.scouted(wide_and_narrow, INITIAL, key=jax.random.key(0), scouting=FEW)
    result = pgps.sample(wide_and_narrow, law, key=jax.random.key(1), num_particles=400, method=pgps.exact(**QUICK))
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence) < 4 * result.log_evidence_error
    assert result.trace["beta"][-1] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.0}, "share must lie in"),
        (
            {"scouting": Scouting(max_dim=2), "initial": pgps.Normal(jnp.zeros(3), 1.0)},
            "initial must draw particles of at",
        ),
    ],
)
def test_scouting_that_cannot_be_is_an_error(settings: dict, message: str):
    arguments = {"initial": INITIAL, "key": jax.random.key(0)} | settings
    with pytest.raises(ValueError, match=message):
        pgps.scouted(lambda x: -jnp.sum(x**2), **arguments)
    with pytest.raises(ValueError, match="num_starts must be at least 2"):
        scouting.Scouting(num_starts=1)
    with pytest.raises(TypeError, match="scouting must be one of"):
        pgps.exact(scouting=3)  # pyright: ignore[reportArgumentType]


def test_command_line_starts_from_a_scouted_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = tmp_path / "model.py"
    model.write_text("def logdensity(x):\n    return -0.5 * ((x - 4) ** 2).sum()\n", encoding="utf-8")
    argv = [
        "sample",
        f"{model}:logdensity",
        "--dim",
        "1",
        "--method",
        "training-free",
        "--dt",
        "0.5",
        "--particles",
        "40",
    ]
    assert cli.main([*argv, "--langevin-steps", "1", "--scouted", "--quiet", "--out", str(tmp_path / "out")]) == 0
    law = pgps.load(tmp_path / "out").provenance["initial"]
    assert law["class"].endswith("Scouted")
    np.testing.assert_allclose(law["centers"], [[4.0]], atol=1e-3)
    assert "scouted = true" in (tmp_path / "out" / "config.toml").read_text()

    model.write_text("def logdensity(x):\n    return x.sum()\n", encoding="utf-8")
    assert cli.main([*argv, "--scouted", "--out", str(tmp_path / "other")]) == 2
    assert "has no maximum that ascents" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
