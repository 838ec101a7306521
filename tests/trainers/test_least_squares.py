"""Least squares: exact where the truth is in the span, nothing where there is none, and blind to held-out luck."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PyTree

from helpers import LINEAR_FIELDS, as_arrays, assert_close, normal_array, over, path_population
from pgps import Normal, exact
from pgps.density import Population, Problem
from pgps.fields import MLP, AbstractField, Additive, Affine, Kernel, Local, Quadratic, Selection, Zero
from pgps.initial import FullNormal
from pgps.paths import Geometric
from pgps.trainers import LeastSquares, Training, residual
from pgps.trainers.least_squares import Contests

KEY = jax.random.key(0)
T = 0.3
NUM = 240
FAMILIES = Selection((Affine(), Additive(), Local()))


@eqx.filter_jit
def _fit(
    field: AbstractField, population: Population, log_weights: Array | None, trainer: LeastSquares
) -> tuple[PyTree, Training, Array]:
    """The fitted parameters, the report and the residuals."""
    t, particles = jnp.asarray(T), population.particles
    params = field.init(KEY, particles.shape[1], particles.dtype)
    params, _, training = trainer.fit(KEY, t, population, field, params, trainer.init(params), log_weights)
    return params, training, residual(*field.flows(params, t, particles, KEY), population)


def fit(
    field: AbstractField, population: Population, log_weights: Array | None = None
) -> tuple[Any, Training, np.ndarray]:
    params, training, residuals = _fit(field, population, log_weights, as_arrays(LeastSquares()))
    return params, training, np.asarray(residuals)


def correlated() -> Population:
    """Particles on the way between two Gaussians with correlations of their own."""
    target = FullNormal(jnp.array([1.0, -2.0]), jnp.array([[0.3, 0.5], [0.5, 1.5]]))
    problem = Problem.of(target.logdensity, FullNormal(jnp.zeros(2), jnp.array([[2.0, -0.6], [-0.6, 1.0]])))
    return path_population(problem, T, Geometric(), normal_array(NUM, 2) * jnp.array([1.2, 0.8]) + 0.2)


def bimodal() -> Population:
    """Particles on the way to two modes in each of two independent coordinates."""
    target = lambda x: jnp.sum(jnp.logaddexp(-2 * (x - 1.5) ** 2, -2 * (x + 1.5) ** 2))  # noqa: E731
    return path_population(Problem.of(target, Normal(shape=(2,))), T, Geometric(), normal_array(NUM, 2))


def bent(dim: int) -> Population:
    """Particles on the way to a density that bends each coordinate along the square of the one before."""
    target = lambda x: -0.5 * x[0] ** 2 - jnp.sum((x[1:] - x[:-1] ** 2) ** 2)  # noqa: E731
    particles = normal_array(NUM, dim)
    particles = particles.at[:, 1:].add(0.6 * particles[:, :-1] ** 2)
    return path_population(Problem.of(target, Normal(shape=(dim,))), T, Geometric(), particles)


def noise(num: int, seed: int) -> Population:
    """Particles whose rates have nothing to do with where they are."""
    x = normal_array(num, 2, seed=seed)
    return Population.of(x, jnp.zeros(num), -x, normal_array(num, seed=1000 + seed))


@pytest.mark.usefixtures("x64")
class TestAffine:
    """One program: the affine field, at as many particles."""

    def test_gaussians_are_in_its_span(self):
        population = correlated()
        _, training, residuals = fit(Affine(), population, jnp.zeros(NUM))
        rates = np.var(population.time_derivative)
        assert rates > 0.5
        # What is left is what the weakest ridge, 1e-5, holds back.
        assert np.var(residuals) < 1e-4 * rates
        assert float(training.r2) > 0.999
        assert float(training.loss) == pytest.approx(1 - float(training.r2))

    def test_gaussians_are_in_its_span_however_long_and_narrow(self):
        """Directions that are a hundred times as long as wide, and oblique to the coordinates."""
        turn, lengths = np.linalg.qr(np.asarray(normal_array(2, 2, seed=6)))[0], np.array([1e2, 1.0])
        z = np.asarray(normal_array(NUM, 2))
        x, score = z * lengths @ turn.T, -z / lengths @ turn.T
        # The inverse covariance grows in both directions, at different rates.
        rates = -0.5 * z**2 @ np.array([1.0, 0.3])
        population = Population.of(jnp.asarray(x), jnp.zeros(NUM), jnp.asarray(score), jnp.asarray(rates))
        _, training, _ = fit(Affine(), population, jnp.zeros(NUM))
        assert float(training.r2) > 0.9999

    def test_noise_gives_no_field(self):
        params, training, _ = fit(Affine(), noise(NUM, 0), jnp.zeros(NUM))
        assert not np.any(params.coefficients)
        assert training.r2 == 0

    def test_particles_without_weight_are_ignored(self):
        population = correlated()
        out = np.arange(NUM) % 5 == 2
        log_weights = jnp.where(out, -jnp.inf, 0.3 * normal_array(NUM, seed=7))
        params, training, _ = fit(Affine(), population, log_weights)
        for value in (1e3, np.nan, np.inf):
            spoilt = eqx.tree_at(
                lambda p: (p.score, p.time_derivative),
                population,
                (population.score.at[out].set(value), population.time_derivative.at[out].set(-value)),
            )
            again, report, _ = fit(Affine(), spoilt, log_weights)
            np.testing.assert_allclose(again.coefficients, params.coefficients, rtol=1e-9)
            assert float(report.r2) == pytest.approx(float(training.r2), rel=1e-9)


@pytest.mark.usefixtures("x64")
def test_more_features_than_particles_do_not_seem_to_help():
    """Of noise, a hundred features explain forty particles entirely, but not the twenty that were held out."""
    populations = [noise(60, seed) for seed in range(40)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *populations)

    @jax.jit
    @jax.vmap
    def run(population: Population) -> tuple[Array, Array]:
        params, training, _ = _fit(Kernel(100), population, None, LeastSquares())
        return jnp.asarray(training.r2), params.coefficients

    r2s, coefficients = map(np.asarray, run(stacked))
    # By luck alone R^2 reaches 0.1 now and then: twenty particles know a share to about 1 / sqrt(20).
    assert np.mean(r2s > 0) < 0.2
    assert np.mean(r2s) < 0.05
    np.testing.assert_array_equal(np.any(coefficients != 0, axis=1), r2s > 0)


@pytest.mark.usefixtures("x64")
def test_selection_takes_the_family_that_fits():
    chosen = [fit(FAMILIES, population) for population in (correlated(), bimodal(), noise(NUM, 3))]
    assert [int(params.choice) for params, *_ in chosen[:2]] == [0, 1]
    assert [float(training.r2) > 0.9 for _, training, _ in chosen] == [True, True, False]
    for _, training, residuals in chosen[:2]:
        assert np.std(residuals) < 0.5
        assert training.converged
    params, training, _ = chosen[2]
    assert training.r2 == 0
    assert not np.any(params.params[int(params.choice)].coefficients)


@pytest.mark.parametrize("field", [Quadratic(), Quadratic(full_up_to=1)])
@pytest.mark.usefixtures("x64")
def test_a_quadratic_field_fits_what_bends(field: Quadratic):
    r2 = fit(field, bent(2))[1].r2
    assert r2 > 0.85
    assert r2 > 0.15 + max(float(fit(other, bent(2))[1].r2) for other in (Affine(), Additive()))


@pytest.mark.usefixtures("x64")
def test_reserves_are_tried_where_others_would_waste_many_particles():
    field = Selection((Affine(), Additive()), reserves=(Quadratic(),))
    before = field.init(KEY, 2, jnp.float64).params[2]
    for population, chosen in ((correlated(), 0), (bent(2), 2)):
        params = fit(field, population)[0]
        assert params.choice == chosen
        assert eqx.tree_equal(params.params[2], before) == (chosen == 0)


@pytest.mark.usefixtures("x64")
def test_a_winner_that_wastes_next_to_nothing_is_not_challenged():
    field = Selection((Affine(), Additive()))
    before = field.init(KEY, 2, jnp.float64).params[1]
    for population, is_challenged in ((correlated(), False), (bimodal(), True)):
        assert eqx.tree_equal(fit(field, population)[0].params[1], before) != is_challenged


@pytest.mark.usefixtures("x64")
def test_a_family_that_gives_little_wins_over_one_that_gives_nothing():
    """In either order: the first one has not won anything yet."""
    x = normal_array(4000, 2)
    waves = jnp.sum(jnp.cos(2 * x) - jnp.cos(2 * x).mean(axis=0), axis=1)
    rates = 0.55 * waves / jnp.std(waves) + normal_array(4000, seed=5)
    population = Population.of(x, jnp.zeros(4000), -x, rates)
    assert fit(Affine(), population)[1].r2 == 0
    for families in ((Affine(), Additive()), (Additive(), Affine())):
        assert 0.1 < fit(Selection(families), population)[1].r2 < 0.4


@pytest.mark.usefixtures("x64")
def test_a_reserve_that_has_won_goes_first():
    field = Selection((Affine(), Additive()), reserves=(Quadratic(),))
    trainer, params = as_arrays(LeastSquares()), field.init(KEY, 2, jnp.float64)
    memory = trainer.init(params)
    for _ in range(2):
        params, memory, training = trainer.fit(KEY, jnp.asarray(T), bent(2), field, params, memory)
        assert params.choice == 2
        assert training.r2 > 0.85


def test_families_that_do_not_suit_the_dimension_are_left_out():
    field = Selection((Affine(),), reserves=(Quadratic(squares_up_to=8),))
    assert [len(field.suited(dim)) for dim in (1, 2, 8, 9)] == [1, 2, 2, 1]
    assert [len(field.init(KEY, dim, jnp.float32).params) for dim in (1, 2, 9)] == [1, 2, 1]
    # One that is asked for is used all the same.
    assert Selection((Quadratic(),)).suited(9) == (Quadratic(),)


def test_reserves_must_be_linear_fields():
    with pytest.raises(TypeError, match="reserves must be .*MLP"):
        Selection((Affine(),), reserves=(MLP(),))  # pyright: ignore[reportArgumentType]


def waits(populations: list[Population]) -> tuple[list[int], list[int], list[float]]:
    """After a fit to each of the populations in turn: fits until the next contest, the choice, and R^2."""
    trainer = as_arrays(LeastSquares())
    params = FAMILIES.init(KEY, 2, populations[0].particles.dtype)
    memory, fit_next = trainer.init(params), eqx.filter_jit(trainer.fit)
    wait, choice, r2 = [], [], []
    for population in populations:
        params, memory, training = fit_next(KEY, jnp.asarray(T), population, FAMILIES, params, memory)
        assert memory is not None
        wait.append(int(memory.wait))
        choice.append(int(params.choice))
        r2.append(float(training.r2))
    return wait, choice, r2


@pytest.mark.usefixtures("x64")
def test_families_that_win_again_are_challenged_less_often():
    wait, choice, r2 = waits(80 * [bimodal()])
    held = [fit for fit, before in enumerate([0, *wait]) if before == 0][1:]
    # After half of all fits so far, up to seven.
    assert held[:5] == [1, 3, 6, 10, 16]
    assert all(later - earlier - 1 <= min(earlier / 2 + 1, 7) for earlier, later in pairwise(held))
    assert held[-1] - held[-2] == 8
    assert set(choice) == {1}
    assert min(r2) > 0.9


@pytest.mark.usefixtures("x64")
def test_a_family_that_fits_worse_is_challenged_at_once():
    calm = waits(40 * [correlated()])[0]
    # Two fits after a contest whose winner was to be left alone for longer.
    last = max(fit for fit in range(38) if calm[fit] > 2)
    wait, choice, r2 = waits([*(last + 1) * [correlated()], *2 * [bimodal()]])
    assert wait[last] > 2
    assert wait[last + 1] == 0
    assert r2[last + 1] < r2[last]
    assert choice[last:] == [0, 0, 1]


@pytest.mark.parametrize(("left", "wait"), [(0.03, 2), (0.05, 0)])
def test_a_residual_that_is_small_may_grow(left: float, wait: int):
    """From next to nothing it grows by any factor, and no other family would be much better."""
    number = jnp.asarray(3)
    contests = Contests(number, number, jnp.asarray(1e-4), jnp.asarray(20), number)
    assert contests.after(jnp.asarray(left), jnp.asarray(True)).wait == wait


@pytest.mark.usefixtures("x64")
def test_families_are_not_fitted_again_and_again_where_none_helps():
    wait, _, r2 = waits([*40 * [noise(NUM, 3)], *8 * [bimodal()]])
    assert np.mean(np.array(wait[20:40]) > 0) > 0.6
    assert max(r2[:40]) == 0
    # At most seven steps later they are.
    assert r2[-1] > 0.9


@over("field", LINEAR_FIELDS | {"selection": FAMILIES})
@pytest.mark.usefixtures("x64")
def test_every_linear_field_keeps_structures_and_dtypes(field: AbstractField):
    def run(population: Population) -> tuple[PyTree, PyTree, Training]:
        params = field.init(KEY, 2, population.particles.dtype)
        memory = LeastSquares().init(params)
        fitted, after, training = LeastSquares().fit(KEY, jnp.asarray(T), population, field, params, memory)
        return (params, memory), (fitted, after), training

    before, after, training = eqx.filter_eval_shape(run, noise(16, 0))
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)  # noqa: E731
    assert shapes(after) == shapes(before)
    assert [jnp.shape(leaf) for leaf in training] == 4 * [()]


def test_of_many_particles_some_are_used_evenly_over_their_order():
    population = correlated()
    log_weights = normal_array(NUM, seed=5)
    # 240 particles, of which every third is taken: 80 are the largest such number up to 100.
    few, _, _ = _fit(Affine(), population, log_weights, as_arrays(LeastSquares(most_rows=100)))
    third = jax.tree.map(lambda leaf: leaf[::3], population)
    expected, _, _ = _fit(Affine(), third, log_weights[::3], as_arrays(LeastSquares()))
    assert_close(few, expected, 1e-6)
    every, _, _ = _fit(Affine(), population, log_weights, as_arrays(LeastSquares(most_rows=NUM)))
    assert np.max(np.abs(every.coefficients - few.coefficients)) > 1e-4


def test_other_fields_are_refused():
    for field in (MLP(4), Zero()):
        with pytest.raises(TypeError, match="trainer LeastSquares fits linear fields, got .*; use trainers.Gradient"):
            exact(field=field, trainer=LeastSquares())


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ridges": ()}, TypeError, r"ridges must be a tuple of numbers, got \(\); "),
        ({"ridges": 0.1}, TypeError, "ridges must be a tuple of numbers, got 0.1; "),
        ({"ridges": (0.1, 0.0)}, ValueError, "ridges must be positive, got 0.0; "),
        ({"most_rows": 2}, ValueError, "most_rows must be at least 3, got 2; "),
        ({"least_r2": 1.5}, ValueError, r"least_r2 must lie in \[0, 1\], got 1.5; "),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        LeastSquares(**arguments)
