"""Theory: the exact fields, the theorem's bound, the proposition's constant, and that the verdicts can fail."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy.special import ndtri

from helpers import path_population
from pgps import Normal, paths, reporting
from pgps.density import Problem
from pgps.experiments.base import Record
from pgps.experiments.exact_fields import GaussianPath, MixturePath, levels, poincare
from pgps.experiments.theory import LINE, MIXTURE, PLANE, Theory
from pgps.experiments.theory_cells import Constants, Run, euler, perturb, proposition, wave
from pgps.experiments.theory_display import slopes
from pgps.targets import GaussianMixture

TIMES = (0.0, 0.3, 0.7, 1.0)


def mixture_problem(path: MixturePath) -> Problem:
    weights, means, stds = (jnp.asarray(end) for end in (path.weights, path.means, path.stds))
    return Problem.of(GaussianMixture(weights, means[:, None], stds), Normal(0.0, path.std, shape=(1,)))


def measure(experiment: Theory) -> dict[str, Record]:
    return {cell.name: cell.run((0,), False) for cell in experiment.cells("smoke")}


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return measure(Theory())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("t", TIMES)
def test_the_gaussian_field_solves_proposition_3_1(t):
    def log_target(x: Array) -> Array:
        return jnp.sum(jax.scipy.stats.norm.logpdf(x, jnp.array(PLANE.target_mean), jnp.array(PLANE.target_std)))

    problem = Problem.of(log_target, Normal(jnp.array(PLANE.initial_mean), jnp.array(PLANE.initial_std)))
    x = np.random.default_rng(0).normal(scale=2.0, size=(50, 2))
    value = path_population(problem, t, paths.Geometric(), jnp.asarray(x))
    field = PLANE.field(t)
    residual = value.time_derivative + np.sum(value.score * field(x), axis=1) + np.sum(field.slope)
    np.testing.assert_allclose(residual, residual[0], atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("t", TIMES)
def test_the_mixture_field_solves_proposition_3_1(t):
    # The grid's own slopes come from the proposition: these are differences of the field itself.
    instant, step = MIXTURE.at(t), 1e-4
    x = np.linspace(-4.0, 4.0, 81)
    slope = (instant(x + step) - instant(x - step)) / (2 * step)
    points = jnp.asarray(np.concatenate([x, instant.x]))[:, None]
    value = path_population(mixture_problem(MIXTURE), t, paths.Geometric(), points)
    score, time_derivative = np.asarray(value.score[:, 0]), np.asarray(value.time_derivative)
    residual = time_derivative[: len(x)] + score[: len(x)] * instant(x) + slope
    np.testing.assert_allclose(residual, residual[0], atol=2e-6)
    score, time_derivative = score[len(x) :], time_derivative[len(x) :]
    np.testing.assert_allclose(instant.score, score, atol=1e-10)
    np.testing.assert_allclose(instant.source, time_derivative - instant.mean(time_derivative), atol=1e-10)


def test_the_mixture_field_takes_quantiles_to_quantiles():
    particles, num_steps = MIXTURE.initial_quantiles(200), 64
    h = 1 / num_steps
    for n in range(num_steps):
        begin, middle, end = (MIXTURE.at((n + part) * h) for part in (0.0, 0.5, 1.0))
        k1 = begin(particles)
        k2 = middle(particles + 0.5 * h * k1)
        k3 = middle(particles + 0.5 * h * k2)
        particles = particles + h / 6 * (k1 + 2 * k2 + 2 * k3 + end(particles + h * k3))
    np.testing.assert_allclose(particles, MIXTURE.target_quantiles(200), atol=1e-7)
    np.testing.assert_allclose(MIXTURE.at(1.0).quantiles(200), MIXTURE.target_quantiles(200), atol=1e-4)


@pytest.mark.parametrize("t", TIMES)
def test_the_grid_is_as_fine_as_it_says(t):
    x = MIXTURE.initial_quantiles(4000)
    gaussian = GaussianPath((0.0,), (LINE.std,), LINE.means, LINE.stds)
    np.testing.assert_allclose(LINE.at(t)(x), gaussian.field(t)(x), atol=1e-11)
    finer = dataclasses.replace(MIXTURE, num_cells=4 * MIXTURE.num_cells)
    np.testing.assert_allclose(MIXTURE.at(t)(x), finer.at(t)(x), atol=1e-8)
    assert MIXTURE.poincare(t)[0] == pytest.approx(finer.poincare(t)[0], rel=1e-8)


@pytest.mark.parametrize("run", [Run("none", 0.0, 8), Run("shift", 0.2, 8), Run("stretch", 0.2, 8)])
def test_moments_of_the_discrete_flow_are_those_of_particles(run):
    z = np.random.default_rng(1).normal(size=(500, 2))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    particles = np.array(PLANE.initial_mean) + np.array(PLANE.initial_std) * z
    means, stds = euler(PLANE, run)
    for n in range(run.num_steps):
        particles = particles + perturb(PLANE, n / run.num_steps, run)(particles) / run.num_steps
        np.testing.assert_allclose(particles.mean(axis=0), means[n + 1], atol=1e-12)
        np.testing.assert_allclose(particles.std(axis=0), stds[n + 1], atol=1e-12)


@pytest.mark.parametrize("t", TIMES)
def test_errors_of_the_field_have_the_size_that_they_say(t):
    mean, std = PLANE.moments(t)
    # Gauss and Hermite's points integrate the square of an affine map exactly.
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    points = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / (2 * math.pi)
    for kind in ("shift", "stretch"):
        difference = perturb(PLANE, t, Run(kind, 0.3, 1))(mean + std * points) - PLANE.field(t)(mean + std * points)
        assert weights @ np.sum(difference**2, axis=1) == pytest.approx(0.09)
    instant = MIXTURE.at(t)
    for kind in ("shift", "wave"):
        values, slopes = wave(instant, instant.x, Run(kind, 0.3, 1))
        assert instant.mean(values**2) == pytest.approx(0.09)
        np.testing.assert_allclose(slopes[2:-2], instant.derivative(values)[2:-2], atol=1e-6)


def test_the_bound_is_that_of_the_theorem():
    # C = 2^2/2 + 17/2 * 9 + 5 * 1 * 2 * 3 = 108.5 and (e^2 - 1) / 2 = 3.194528.
    assert Constants(1.0, 2.0, 3.0).bound(0.1, 0.25) == pytest.approx(0.1 * 4.481689 + 0.5 * math.sqrt(346.606293))
    assert Constants(1.0, 2.0, 3.0).bound(0.1, 0.25) == pytest.approx(9.75685, rel=1e-6)
    assert Constants(0.0, 2.0, 3.0).bound(0.0, 1.0) == pytest.approx(math.sqrt(2 * (math.e - 1)))
    assert Constants(1e3, 1.0, 1.0).bound(0.0, 1.0) == math.inf


def test_constants_are_read_off_a_field():
    # phi_t(x) = (3 t + 2 x, 4 t) on [-1, 1]: the slope is 2, the change (3, 4), the size at most |(5, 4)|.
    t, x = np.meshgrid(np.linspace(0, 1, 11), np.linspace(-1, 1, 5), indexing="ij")
    values = np.stack([3 * t + 2 * x, 4 * t], axis=-1)
    np.testing.assert_allclose(Constants.of(values, np.full_like(t, -2.0)), (2.0, 5.0, math.sqrt(41)))


def test_the_constant_of_a_gaussian_is_its_variance():
    for t in TIMES:
        instant, variance = LINE.at(t), 1 / ((1 - t) + t / LINE.stds[0] ** 2)
        constant, worst = LINE.poincare(t)
        assert constant == pytest.approx(variance, rel=1e-8)
        np.testing.assert_allclose(worst[np.abs(instant.x) < 2], 1.0, atol=1e-3)
        # T h_n = -sqrt(n + 1) / sigma h_(n+1): an error of Hermite's order n has the ratio sigma^2 / (n + 1).
        z = (instant.x - instant.mean(instant.x)) / math.sqrt(variance)
        velocity = instant.velocity + z**2 - 1
        loss = instant.loss(velocity, instant.derivative(velocity))
        assert instant.error(velocity) / loss == pytest.approx(variance / 3, rel=1e-6)


def test_no_error_exceeds_the_constant_and_one_attains_it():
    instant, (constant, worst) = MIXTURE.at(1.0), MIXTURE.poincare(1.0)
    loss = instant.loss(instant.velocity + worst, instant.derivative(instant.velocity + worst))
    assert instant.error(instant.velocity + worst) / loss == pytest.approx(constant, rel=1e-6)
    rng = np.random.default_rng(2)
    for _ in range(50):
        error = sum(rng.normal() * np.cos(k * instant.x + rng.uniform(0, 6)) for k in range(5))
        velocity = instant.velocity + error
        assert instant.error(velocity) < constant * instant.loss(velocity, instant.derivative(velocity))


def test_students_t_has_no_constant():
    wide, wider = (poincare(lambda x: -2 * np.log1p(x**2 / 3), radius, 4000)[0] for radius in (40.0, 80.0))
    assert wider / wide == pytest.approx(4.0, rel=0.02)


def test_the_smoke_preset_reproduces_every_claim(records):
    findings = Theory().findings("smoke", records)
    assert [claim.verdict for claim in findings.claims] == ["reproduced", "reproduced"]
    in_h, in_delta = slopes({name: records[f"theorem-{name.lower()}"] for name in ("Gaussian", "mixture")})
    np.testing.assert_allclose(list(in_h.values()), 1.0, atol=0.03)
    np.testing.assert_allclose(list(in_delta.values()), 1.0, atol=0.06)
    json.dumps({name: record.rows for name, record in records.items()}, allow_nan=False)
    assert reporting.encode(findings.figure, "png").startswith(b"\x89PNG")
    for table in findings.tables:
        assert {len(row) for row in table.rows} == {len(table.head)}
    assert any("without the step size" in note for note in findings.notes)


def test_training_lowers_loss_and_error_together(records):
    for name in ("gaussian", "mixture"):
        trained = [row for row in records[f"proposition-{name}"].rows if row["kind"] == "trained" and row["t"] == 1.0]
        assert trained[-1]["loss"] < 0.1 * trained[0]["loss"]
        assert trained[-1]["error"] < 0.1 * trained[0]["error"]


def test_a_wrong_field_is_found_out(records, monkeypatch):
    gaussian, mixture = GaussianPath.field, MixturePath.at

    def too_fast(self, t):
        instant = mixture(self, t)
        return dataclasses.replace(instant, velocity=1.1 * instant.velocity, slope=1.1 * instant.slope)

    monkeypatch.setattr(
        GaussianPath, "field", lambda self, t: type(gaussian(self, t))(*(1.1 * v for v in gaussian(self, t)))
    )
    monkeypatch.setattr(MixturePath, "at", too_fast)
    wrong = measure(Theory())
    for spoilt in ("theorem-gaussian", "theorem-mixture"):
        findings = Theory().findings("smoke", records | {spoilt: wrong[spoilt]})
        assert [claim.verdict for claim in findings.claims] == ["partly", "reproduced"]
    for spoilt in ("proposition-gaussian", "proposition-mixture"):
        findings = Theory().findings("smoke", records | {spoilt: wrong[spoilt]})
        assert [claim.verdict for claim in findings.claims] == ["reproduced", "not reproduced"]


def test_a_distance_above_the_bound_is_found_out(records):
    rows = [row | {"w2": 1e4 * row["w2"]} for row in records["theorem-mixture"].rows]
    spoilt = records | {"theorem-mixture": dataclasses.replace(records["theorem-mixture"], rows=rows)}
    assert Theory().findings("smoke", spoilt).claims[0].verdict == "partly"


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_settings_are_plain(preset):
    cells = Theory().cells(preset)
    assert len({cell.name for cell in cells}) == len(cells)
    json.dumps([cell.settings for cell in cells], allow_nan=False)
    assert Theory().seeds(preset) == (0,)


def test_more_seeds_train_more_networks():
    rows = proposition(LINE, (1.0,), (0, 3), (0, 1)).rows
    assert [(row["seed"], row["training_steps"]) for row in rows if row["kind"] == "trained"] == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 3),
    ]


def test_levels_are_midpoints():
    np.testing.assert_allclose(levels(2), [0.25, 0.75])
    np.testing.assert_allclose(MIXTURE.initial_quantiles(2), ndtri([0.25, 0.75]))
