"""Edges of a density: that they are seen, and that evidence and masses are right along them."""

import math
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import stats

import pgps
from helpers import counting
from pgps.density import Evaluations, Problem
from pgps.edges import has_edge, start_inside
from pgps.methods.pgps import Memory
from pgps.scouting import Scouting
from pgps.weights import Weights

KEY = jax.random.key(0)


class Inside(eqx.Module):
    """A density that is 0 outside a box; inside, each coordinate's logarithm is c0 + c1 x + c2 x^2 / 2.

    All numbers are arrays, so that one compilation serves all boxes of as many dimensions.
    """

    low: Array
    high: Array
    coefficients: Array

    def __call__(self, x: Array) -> Array:
        constant, slope, curvature = self.coefficients
        value = jnp.sum(constant + slope * x + curvature * x**2 / 2)
        return jnp.where(jnp.all((x > self.low) & (x < self.high)), value, -jnp.inf)


def inside(low: float, high: float, coefficients: tuple[float, float, float]) -> Inside:
    return Inside(*map(jnp.asarray, (low, high, coefficients)))


GAUSSIAN = (-0.5 * math.log(2 * math.pi), 0.0, -1.0)
FLAT = (0.0, 0.0, 0.0)
EXPONENTIAL = (0.0, -1.0, 0.0)

gaussian = inside(-math.inf, math.inf, GAUSSIAN)


def overflowing(x: Array) -> Array:
    """A Poisson model: -inf for large x, but only since numbers end there."""
    return jnp.sum(3 * x - jnp.exp(30 * x))


def sampled(logdensity: Callable[[Array], Array], initial: pgps.Normal | pgps.Uniform, **kwargs) -> pgps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgps.PGPSWarning)
        return pgps.sample(logdensity, initial, key=KEY, num_particles=1000, **kwargs)


@pytest.mark.parametrize(
    ("logdensity", "initial", "expected"),
    [
        (gaussian, pgps.Normal(0.0, 2.0, shape=(3,)), False),
        (overflowing, pgps.Normal(0.0, 2.0, shape=(3,)), False),
        (gaussian, pgps.Uniform(-1.0, 1.0, shape=(3,)), True),
        (inside(-4.0, 4.0, GAUSSIAN), pgps.Normal(0.0, 1.0, shape=(3,)), True),
        (inside(0.0, math.inf, GAUSSIAN), pgps.Normal(0.0, 1.0, shape=(3,)), True),
        (inside(-1e3, 1e3, GAUSSIAN), pgps.Normal(0.0, 1.0, shape=(3,)), False),
    ],
    ids=["gaussian", "overflow", "uniform-law", "box", "half-space", "beyond-reach"],
)
def test_edges_near_the_initial_law_are_seen(logdensity: Callable, initial: pgps.Normal | pgps.Uniform, expected: bool):
    problem = Problem.of(logdensity, initial)
    found, evaluations = eqx.filter_jit(has_edge)(problem, problem.draw(KEY, 500))
    assert bool(found) is expected
    assert int(evaluations.gradients) == 0


@pytest.mark.parametrize(("half", "num_values"), [(4.0, 10), (1e3, 2)], ids=["edge", "none"])
def test_what_it_costs_to_look_is_counted(half: float, num_values: int):
    logdensity, calls = counting(inside(-half, half, GAUSSIAN))
    problem = Problem.of(logdensity, pgps.Normal(0.0, 1.0, shape=(3,)))
    _, evaluations = eqx.filter_jit(has_edge)(problem, problem.draw(KEY, 50))
    assert int(evaluations.values) == num_values
    # Counts are whole calls per particle.
    assert 50 * (num_values - 1) < calls["value"] <= 50 * num_values


HALF_BOX = 3 * math.log(stats.norm.cdf(2) - 0.5)
TRUTHS = {
    "law-in-a-box": (inside(-5.0, 5.0, GAUSSIAN), pgps.Uniform(-5.0, 5.0, shape=(3,)), 0.0),
    "law-that-touches": (inside(0.0, 2.0, GAUSSIAN), pgps.Uniform(0.0, 2.0, shape=(3,)), HALF_BOX),
    "exponential": (inside(0.0, math.inf, EXPONENTIAL), pgps.Uniform(0.0, 10.0, shape=(3,)), 0.0),
    "flat-box": (inside(-1.0, 1.0, FLAT), pgps.Normal(0.0, 2.0, shape=(3,)), 3 * math.log(2)),
    "half-normal": (inside(0.0, math.inf, GAUSSIAN), pgps.Normal(0.0, 2.0, shape=(3,)), -3 * math.log(2)),
    "wider-box": (inside(-4.0, 4.0, FLAT), pgps.Normal(0.0, 1.0, shape=(3,)), 3 * math.log(8)),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_evidence_is_right_along_edges(name: str):
    logdensity, initial, truth = TRUTHS[name]
    result = sampled(logdensity, initial)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert result.log_evidence_error < 0.1
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_error
    assert not result.warnings
    assert result.num_evaluations.gradients < 600_000


def test_an_island_that_missed_the_support_does_not_hold_up_the_other():
    """A box with 6e-5 of the initial law: with this key all tries of one island are outside."""
    result = sampled(inside(1.65, 2.35, FLAT), pgps.Normal(0.0, 1.0, shape=(3,)))
    assert result.status == pgps.Status.COMPLETED
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence - 3 * math.log(0.7)) < 4 * result.log_evidence_error
    assert any("two islands are inf standard errors apart" in doubt for doubt in result.warnings)


QUADRANT = Problem.of(inside(0.0, math.inf, GAUSSIAN), pgps.Normal(0.0, 1.0, shape=(2,)))


@eqx.filter_jit
def started(num: int, key: Array, needed: bool = True) -> tuple[Array, Weights, Evaluations]:
    """Particles in 2-D, of which a quarter would be inside the quadrant."""
    key_draw, key_start = jax.random.split(key)
    particles, equal = QUADRANT.draw(key_draw, num), Weights.equal(num, jnp.dtype("float32"), 2)
    return start_inside(key_start, QUADRANT, particles, equal, jnp.asarray(needed))


def test_particles_are_drawn_again_until_they_are_inside():
    particles, weights, evaluations = started(2000, KEY)
    assert np.all(np.asarray(particles) > 0)
    np.testing.assert_allclose(weights.on_islands, -math.log(1000), rtol=1e-5)
    assert abs(float(weights.log_evidence) - math.log(1 / 4)) < 4 * float(weights.log_evidence_error)
    assert float(weights.log_evidence_error) < 0.02
    # They are half-normal.
    mean = float(jnp.mean(particles[:, 0]))
    assert abs(mean - math.sqrt(2 / math.pi)) < 4 * 0.6 / math.sqrt(2000)
    assert int(evaluations.values) == 32


def test_the_share_inside_is_unbiased():
    shares = [float(jnp.exp(started(6, key)[1].log_evidence)) for key in jax.random.split(KEY, 200)]
    assert abs(np.mean(shares) - 1 / 4) < 4 * np.std(shares) / math.sqrt(200)


def test_particles_stay_as_they_are_without_need():
    particles, weights, evaluations = started(100, KEY, needed=False)
    np.testing.assert_array_equal(particles, QUADRANT.draw(jax.random.split(KEY)[0], 100))
    np.testing.assert_array_equal(weights.log_evidences, 0.0)
    assert int(evaluations.values) == 0


def test_particles_reach_the_edges():
    result = sampled(*TRUTHS["wider-box"][:2])
    near = np.mean(np.abs(np.asarray(result.particles)[:, 0]) > 3.6)
    # 0.1, with a standard error of 0.01 for 1000 independent particles, and they are worth fewer.
    assert 0.05 < near < 0.15


@pytest.mark.parametrize("name", ["law-in-a-box", "half-normal"])
def test_fresh_particles_are_drawn_inside_and_without_fields_too(name: str):
    logdensity, initial, truth = TRUTHS[name]
    drawn = sampled(logdensity, initial).draw(jax.random.key(1), 4000)
    assert drawn.log_evidence is not None
    assert drawn.log_evidence_error is not None
    assert drawn.log_evidence_error < 0.1
    assert abs(drawn.log_evidence - truth) < 4 * drawn.log_evidence_error


def test_a_field_that_leads_over_an_edge_is_not_used_again():
    # Beyond what is looked at before the first step.
    result = sampled(inside(-8.0, 8.0, FLAT), pgps.Normal(0.0, 1.0, shape=(1,)), method=pgps.exact(0.0, 1.0))
    edges = np.asarray(result.trace["has_edge"])
    assert not edges[0]
    assert np.any(edges[:-1])
    assert np.all(np.asarray(result.trace["reach"])[1:][edges[:-1]] == 0)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence - math.log(16)) < 4 * result.log_evidence_error
    assert any("falls to 0 at once" in warning for warning in result.warnings)


def test_an_edge_that_only_moves_meet_is_doubted():
    result = sampled(inside(-20.0, 20.0, FLAT), pgps.Normal(0.0, 1.0, shape=(1,)))
    assert any("falls to 0 at once" in warning for warning in result.warnings)


def steep(x: Array) -> Array:
    """Falls like exp(-exp(x^2)), which overflows near |x| = 10: moves of the first steps lead there."""
    return -jnp.sum(jnp.exp(x**2 - 10))


def test_places_where_the_density_overflows_are_no_edge():
    initial = pgps.Normal(0.0, 4.0, shape=(2,))
    result = sampled(steep, initial)
    assert np.min(result.trace["inside"]) < 0.99
    assert not np.any(result.trace["has_edge"])
    assert not any("falls to 0 at once" in warning for warning in result.warnings)
    x = np.linspace(-10, 10, 4001)
    truth = 2 * np.log(np.sum(np.exp(-np.exp(np.minimum(x**2 - 10, 50)))) * (x[1] - x[0]))
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_error


def test_an_edge_that_cannot_be_looked_for_is_doubted():
    """The look takes evaluations, of which none may be left."""
    logdensity, initial = inside(-20.0, 20.0, FLAT), pgps.Normal(0.0, 1.0, shape=(1,))
    without = sampled(logdensity, initial, method=pgps.exact(scouting=None))
    total = without.num_evaluations.total
    result = sampled(logdensity, initial, method=pgps.exact(scouting=None), max_evaluations=total - 1)
    assert result.status == without.status
    assert result.num_evaluations.total < total
    assert any("falls to 0 at once" in warning for warning in result.warnings)


@pytest.mark.parametrize("name", ["flat-box", "half-normal"])
def test_a_path_that_moves_the_edge_is_doubted(name: str):
    result = sampled(*TRUTHS[name][:2], method=pgps.exact(1.0, 0.3, scouting=None))
    assert any("take the geometric path" in warning for warning in result.warnings)
    # Particles outside are not drawn again: the shrunk target has another support.
    assert result.fitted is not None
    assert not result.fitted.drawn_inside


def test_a_target_that_reaches_beyond_the_law_is_doubted_and_made_again():
    law = pgps.Uniform(-1.0, 1.0, shape=(3,))
    first = sampled(gaussian, law, method=pgps.exact(scouting=Scouting(again=False)))
    assert any("ended where the initial law has no density" in warning for warning in first.warnings)
    result = sampled(gaussian, law)
    assert result.warnings == ()
    assert "covers 1 maximum." in str(result.second_start)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert abs(result.log_evidence) < 4 * result.log_evidence_error < 0.1


def test_without_weights_nobody_looks_for_edges():
    method = pgps.training_free(dt=0.5, langevin_steps=1)
    problem = Problem.of(gaussian, pgps.Uniform(-1.0, 1.0, shape=(2,)))
    state = eqx.filter_jit(method.init)(KEY, problem, 10)
    assert isinstance(state.memory, Memory)
    assert not state.memory.has_edge
    assert (int(state.evaluations.values), int(state.evaluations.gradients)) == (0, 1)
