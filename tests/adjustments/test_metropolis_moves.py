"""MALA's and HMC's moves: their formulas, the stationary law at any step size, adaptation, and refused proposals."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from scipy import stats

from helpers import as_arrays, assert_close, assert_covariance, bumpy, normal_array
from pgps.adjustments import HMC, MALA, AbstractAdjustment, Adjustment, hmc_step, mala_step
from pgps.adjustments.metropolis import Move, MoveMemory, metropolis
from pgps.density import Population

KEY = jax.random.key(4)
MEAN, COVARIANCE = np.array([1.0, -0.5]), np.array([[1.0, 0.6], [0.6, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE)


def correlated(x: Array) -> Array:
    z = x - jnp.asarray(MEAN, x.dtype)
    return -0.5 * z @ jnp.asarray(PRECISION, x.dtype) @ z


@eqx.filter_jit
def evaluate(density: Callable[[Array], Array], x: Array) -> Population:
    values, scores = jax.vmap(jax.value_and_grad(density))(x)
    return Population.of(x, values, scores, jnp.zeros_like(values))


@eqx.filter_jit
def move(step: Callable, key: Array, x: Array, density: Callable[[Array], Array]) -> tuple[Population, Move]:
    start = evaluate(density, x)
    return start, step(key, start, evaluate=partial(evaluate, density))


@eqx.filter_jit
def _adjust(
    adjustment: AbstractAdjustment, key: Array, x: Array, memory: MoveMemory, density: Callable[[Array], Array]
) -> tuple[Array, MoveMemory, Adjustment]:
    t = jnp.ones((), x.dtype)
    start = evaluate(density, x)
    population, memory, report = adjustment.adjust(key, t, t, start, memory, lambda x, key=None: evaluate(density, x))
    return population.particles, memory, report


def adjust(
    adjustment: AbstractAdjustment, x: Array, density: Callable[[Array], Array] = correlated
) -> tuple[Array, MoveMemory, Adjustment]:
    adjustment = as_arrays(adjustment)
    return _adjust(adjustment, KEY, x, adjustment.init(evaluate(density, x)), density)


def exact_draws(num: int) -> Array:
    return jnp.asarray(np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, num), jnp.float32)


def random_numbers(key: Array, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian and uniform numbers as a move draws them."""
    key_normal, key_accept = jax.random.split(key)
    return np.asarray(jax.random.normal(key_normal, shape)), np.asarray(jax.random.uniform(key_accept, shape[:1]))


def proposal_of_mala(x: np.ndarray, xi: np.ndarray, h: float) -> tuple[np.ndarray, float]:
    """A proposal and its log-ratio, with the Gaussian densities of the way there and back written out."""
    grad = jax.grad(bumpy)
    drift = lambda x: x + h * np.asarray(grad(x))  # noqa: E731
    new = drift(x) + np.sqrt(2 * h) * xi
    q = lambda to, source: np.sum(stats.norm.logpdf(to, drift(source), np.sqrt(2 * h)))  # noqa: E731
    return new, float(bumpy(jnp.asarray(new)) - bumpy(jnp.asarray(x)) + q(x, new) - q(new, x))


def proposal_of_hmc(x: np.ndarray, v: np.ndarray, h: float, num_leapfrog: int) -> tuple[np.ndarray, float]:
    """The leapfrog scheme with full steps of the momentum between those of the position."""
    grad = lambda x: np.asarray(jax.grad(bumpy)(jnp.asarray(x)))  # noqa: E731
    energy = lambda x, v: float(v @ v / 2 - bumpy(jnp.asarray(x)))  # noqa: E731
    before = energy(x, v)
    v = v + h / 2 * grad(x)
    for k in range(num_leapfrog):
        x = x + h * v
        v = v + (h if k < num_leapfrog - 1 else h / 2) * grad(x)
    return x, before - energy(x, v)


@pytest.mark.parametrize(
    ("step", "propose"),
    [
        (partial(mala_step, step_size=0.35), partial(proposal_of_mala, h=0.35)),
        (partial(hmc_step, step_size=0.75, num_leapfrog=3), partial(proposal_of_hmc, h=0.75, num_leapfrog=3)),
    ],
    ids=["mala", "hmc"],
)
@pytest.mark.usefixtures("x64")
def test_one_move_equals_its_transcription(step: Callable, propose: Callable):
    x = np.asarray(normal_array(5, 3))
    xi, u = random_numbers(KEY, x.shape)
    _, made = move(step, KEY, jnp.asarray(x), bumpy)
    proposals, log_ratios = zip(*[propose(a, b) for a, b in zip(x, xi, strict=True)], strict=True)
    probability = np.exp(np.minimum(log_ratios, 0))
    accepted = u < probability
    assert 0 < accepted.sum() < 5
    expected = np.where(accepted[:, None], np.array(proposals), x)
    assert_close(made.population, evaluate(bumpy, jnp.asarray(expected)))
    np.testing.assert_allclose(made.acceptance, probability.mean(), rtol=1e-10)
    assert made.faults == 0


@pytest.mark.parametrize("adjustment", [MALA(0.35, 10, None), HMC(0.6, 3, 10, None)], ids=["mala", "hmc"])
def test_the_target_is_stationary_at_a_large_step_size(adjustment: AbstractAdjustment):
    particles, memory, report = adjust(adjustment, exact_draws(40_000))
    assert 0.2 < report.acceptance < 0.8
    assert_covariance(particles, MEAN, COVARIANCE)
    # Without a target the step size is kept.
    assert memory == as_arrays(adjustment).init(evaluate(correlated, exact_draws(2)))


@pytest.mark.parametrize(
    ("kind", "target", "first"),
    [(MALA, 0.574, 1e-3), (MALA, 0.8, 10.0), (HMC, 0.8, 1e-2), (HMC, 0.65, 3.0)],
    ids=["mala-small", "mala-large", "hmc-small", "hmc-large"],
)
def test_the_step_size_is_adapted_to_the_acceptance_rate(kind: type[MALA] | type[HMC], target: float, first: float):
    adapted = kind(step_size=first, num_steps=40, target_acceptance=target)
    particles, memory, _ = adjust(adapted, exact_draws(40_000))
    # Twenty more moves, with the step size that was found.
    settled = kind(step_size=float(np.exp(memory.log_step_size)), num_steps=40, target_acceptance=target)
    _, _, report = adjust(settled, particles)
    assert float(report.acceptance) == pytest.approx(target, abs=0.02)


SCALES = np.array([3.0, 0.03])


def stretched(x: Array) -> Array:
    """A Gaussian with standard deviations that differ by a factor of 100."""
    return -0.5 * jnp.sum((x / jnp.asarray(SCALES, x.dtype)) ** 2)


@pytest.mark.parametrize(
    "adjustment",
    [MALA(0.5, 10, None, True, 0.4), HMC(1.0, None, 10, None, True, 0.5, 0.4)],
    ids=["mala", "hmc"],
)
def test_moves_of_the_local_width_are_stationary_and_go_far(adjustment: MALA | HMC):
    draws = jnp.asarray(np.random.default_rng(1).standard_normal((20_000, 2)) * SCALES, jnp.float32)
    particles, memory, report = adjust(adjustment, draws, stretched)
    assert_covariance(particles, [0.0, 0.0], np.diag(SCALES**2))
    assert 0.5 < report.acceptance < 0.99
    # Ten moves that are about as long as the density is wide, in both coordinates, forget where they began: then
    # squared distances are those of independent draws, whose mean is known to 1 / sqrt(20,000).
    assert float(report.covered) == pytest.approx(1.0, abs=0.06)
    assert np.all(np.abs(np.mean(particles * draws, axis=0)) < 0.1 * SCALES**2)
    # So fewer will do next time: half as many at the least.
    assert float(memory.num_steps) == pytest.approx(5)
    # A Gaussian is equally wide everywhere.
    assert float(report.width_spread) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "adjustment",
    [MALA(1e-5, 1, None, True, 0.4, 6), HMC(1e-3, 1, 1, None, True, 0.5, 0.4, 6)],
    ids=["mala", "hmc"],
)
def test_tiny_steps_are_followed_by_others_up_to_a_limit(adjustment: MALA | HMC):
    draws = jnp.asarray(np.random.default_rng(1).standard_normal((500, 2)) * SCALES, jnp.float32)
    adjustment = as_arrays(adjustment)
    _, memory, report = _adjust(adjustment, KEY, draws, adjustment.init(evaluate(stretched, draws)), stretched)
    assert report.num_steps == report.evaluations.gradients == memory.num_steps == 6
    assert float(memory.log_step_size) == pytest.approx(np.log(adjustment.step_size))


def test_moves_go_on_until_they_have_covered_their_aim():
    draws = jnp.asarray(np.random.default_rng(1).standard_normal((500, 2)) * SCALES, jnp.float32)
    adjustment = as_arrays(HMC(0.3, 1, 1, None, True, 0.0, 0.4, 50))
    _, memory, report = _adjust(adjustment, KEY, draws, adjustment.init(evaluate(stretched, draws)), stretched)
    assert 1 < report.num_steps < 50
    assert 0.9 * 0.4 <= report.covered < 0.5
    # The next time so many are made from the start.
    assert float(memory.num_steps) == pytest.approx(float(report.num_steps * 0.4 / report.covered), rel=1e-3)


MOVES = {"mala": partial(mala_step, step_size=0.1), "hmc": partial(hmc_step, step_size=0.5, num_leapfrog=1)}


def proposals(step: Callable, key: Array, start: Population) -> np.ndarray:
    """Where a move would go: one leapfrog step of 0.5 and a Langevin step of 0.125 differ in their sizes alone."""
    h = 0.1 if step is MOVES["mala"] else 0.125
    xi, _ = random_numbers(key, (len(start.particles), 2))
    return np.asarray(start.particles) + h * np.asarray(start.score) + np.sqrt(2 * h) * xi.astype(np.float32)


def test_proposals_without_a_ratio_are_refused():
    """A momentum that overflows has none; one nan would be the acceptance rate, and then the step size, for good."""
    before, after = evaluate(correlated, exact_draws(4)), evaluate(correlated, exact_draws(4) + 1)
    made = metropolis(KEY, before, after, jnp.array([jnp.nan, 0.0, jnp.nan, -jnp.inf]))
    np.testing.assert_array_equal(
        made.population.particles[jnp.array([0, 2, 3])], before.particles[jnp.array([0, 2, 3])]
    )
    np.testing.assert_array_equal(made.population.particles[1], after.particles[1])
    assert float(made.acceptance) == 0.25
    assert int(made.faults) == 0


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("hole", [np.nan, np.inf], ids=["nan", "+inf"])
def test_proposals_where_the_density_fails_are_refused_and_counted(name: str, hole: float):
    def density(x: Array) -> Array:
        return jnp.where(x[0] < 0.1, -0.5 * jnp.sum(x**2), hole)

    x = 0.5 * normal_array(200, 2)
    x = x.at[:, 0].set(-jnp.abs(x[:, 0]))
    start, made = move(MOVES[name], KEY, x, density)
    inside = proposals(MOVES[name], KEY, start)[:, 0] < 0.1
    assert 10 < np.sum(~inside) < 190
    assert made.faults == np.sum(~inside)
    np.testing.assert_array_equal(made.population.particles[~inside], x[~inside])
    assert np.all(np.isfinite(made.population.logdensity))
    assert np.all(np.isfinite(made.population.score))
    assert np.isfinite(made.acceptance)
    # The others move as ever.
    assert np.mean(np.any(made.population.particles[inside] != x[inside], axis=1)) > 0.5


@pytest.mark.parametrize("name", MOVES)
def test_particles_come_back_into_the_support_and_do_not_leave_it(name: str):
    def density(x: Array) -> Array:
        return jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf)

    x = 0.5 * normal_array(400, 2)
    start, made = move(MOVES[name], KEY, x, density)
    was_in, goes_in = np.asarray(x[:, 0] > 0), proposals(MOVES[name], KEY, start)[:, 0] > 0
    is_in = np.asarray(made.population.alive)
    for from_inside in (False, True):
        for to_inside in (False, True):
            assert np.sum((was_in == from_inside) & (goes_in == to_inside)) > 20
    # Inside stays inside; outside, every way back in is taken and no other.
    np.testing.assert_array_equal(is_in, was_in | goes_in)
    np.testing.assert_array_equal(made.population.particles[~goes_in], x[~goes_in])
    assert made.faults == 0


@pytest.mark.parametrize("adjustment", [MALA(0.1, 7), HMC(0.2, 4, 3)], ids=["mala", "hmc"])
def test_several_moves_are_moves_with_keys_of_their_own(adjustment: MALA | HMC):
    """Each of them with the step size as adapted so far: ln h <- ln h + (acceptance - target)."""
    x = exact_draws(100)
    particles, memory, report = adjust(adjustment, x)
    log_step_size, acceptances = np.log(adjustment.step_size), []
    for k in range(adjustment.num_steps):
        # A pytree, so that another step size is not another program.
        step = jax.tree_util.Partial(mala_step, step_size=jnp.float32(np.exp(log_step_size)))
        if isinstance(adjustment, HMC):
            step = jax.tree_util.Partial(hmc_step, step_size=step.keywords["step_size"], num_leapfrog=jnp.asarray(4))
        # HMC spends a part of each key on its jitter, also where that is 0.
        key = jax.random.fold_in(KEY, k)
        key = jax.random.split(key)[0] if isinstance(adjustment, HMC) else key
        _, made = move(step, key, x, correlated)
        x = made.population.particles
        acceptances.append(float(made.acceptance))
        log_step_size += acceptances[-1] - float(adjustment.target_acceptance or 0)
    np.testing.assert_allclose(particles, x, atol=1e-4)
    assert float(memory.log_step_size) == pytest.approx(log_step_size, abs=1e-4)
    assert float(report.acceptance) == pytest.approx(np.mean(acceptances), abs=1e-5)
    assert report.num_steps == adjustment.num_steps
