"""The residual (Eq. 4), the losses (Eq. 6), Proposition 3.1, and the training loop of Algorithm 3."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, PyTree

from helpers import (
    ESTIMATED_FIELDS,
    FIELDS,
    TRAINERS,
    as_arrays,
    assert_close,
    normal_array,
    over,
    path_population,
    some_params,
    vector_problem,
)
from pgps.density import Population, Problem
from pgps.fields import MLP, AbstractField
from pgps.initial import FullNormal
from pgps.paths import Geometric, LogWeightedShrinkage
from pgps.trainers import (
    AbstractTrainer,
    Gradient,
    LearningRateDrop,
    NoTraining,
    Training,
    mean_square,
    residual,
    variance,
)

pytestmark = pytest.mark.usefixtures("x64")

T = 0.4
KEY = jax.random.key(0)
FIELD = MLP(4)
HUTCHINSON = MLP(4, depth=2, num_probes=1)


@eqx.filter_jit
def residuals_at(params: PyTree, population: Population, field: AbstractField = FIELD) -> Array:
    velocity, divergence = field.flows(params, jnp.asarray(T), population.particles, KEY)
    return residual(velocity, divergence, population)


@eqx.filter_jit
def loss_and_gradient(loss: Callable, params: PyTree, population: Population) -> tuple[Array, PyTree]:
    def loss_fn(params: PyTree) -> Array:
        return loss(*FIELD.flows(params, jnp.asarray(T), population.particles, KEY), population)

    return jax.value_and_grad(loss_fn)(params)


def loss_at(loss: Callable, params: PyTree, population: Population) -> Array:
    return loss_and_gradient(loss, params, population)[0]


@eqx.filter_jit
def _fit(
    trainer: AbstractTrainer, population: Population, params: PyTree, memory: Any, field: AbstractField
) -> tuple[PyTree, Any, Training]:
    memory = trainer.init(params) if memory is None else memory
    return trainer.fit(KEY, jnp.asarray(T), population, field, params, memory)


def fit(
    trainer: AbstractTrainer,
    population: Population,
    params: PyTree,
    memory: Any = None,
    field: AbstractField = FIELD,
) -> tuple[PyTree, Any, Training]:
    """Fit at T, from a fresh memory if there is none."""
    return _fit(as_arrays(trainer), population, params, memory, field)


def usual() -> tuple[Population, PyTree]:
    """Sixteen particles and a field's parameters."""
    return path_population(vector_problem(), T), some_params(FIELD, 3)


def insert_particles(leaf: Array, value: float) -> Array:
    """Three more among the sixteen."""
    return jnp.asarray(np.insert(leaf, [2, 5, 16], value, axis=0))


def with_dead_particles(time_derivative: float) -> Population:
    """The usual particles, and three among them that are outside the support."""
    population, _ = usual()
    return Population.of(
        insert_particles(population.particles, 7.0),
        insert_particles(population.logdensity, -np.inf),
        insert_particles(population.score, np.nan),
        insert_particles(population.time_derivative, time_derivative),
    )


def half_space(x: Array) -> Array:
    """A Gaussian without the half where x[0] < -5."""
    return jnp.where(x[0] > -5.0, -0.5 * jnp.sum(x**2), -jnp.inf)


class TestResidual:
    """Eq. 4 and Eq. 6."""

    def test_equation_4(self):
        problem, path, params = vector_problem(), LogWeightedShrinkage(0.3, 0.6), some_params(FIELD, 3)
        population = path_population(problem, T, path)

        @jax.jit
        @jax.vmap
        def by_hand(x: Array) -> Array:
            logdensity = lambda t, x: path.logdensity(t, x, problem)  # noqa: E731
            phi = lambda x: FIELD.apply(params, jnp.asarray(T), x)  # noqa: E731
            time_derivative, score = jax.grad(logdensity, argnums=(0, 1))(jnp.asarray(T), x)
            return time_derivative + jnp.dot(score, phi(x)) + jnp.trace(jax.jacrev(phi)(x))

        assert_close(residuals_at(params, population), by_hand(population.particles))

    def test_equation_6(self):
        population, params = usual()
        residuals = residuals_at(params, population)
        time_derivative, r = np.asarray(population.time_derivative), np.asarray(residuals)
        square, spread = loss_at(mean_square, params, population), loss_at(variance, params, population)
        assert_close(square, jnp.asarray(np.mean((r - time_derivative.mean()) ** 2)))
        assert_close(spread, jnp.asarray(np.mean((r - r.mean()) ** 2)))
        assert spread < square

    @pytest.mark.parametrize("field", [FIELD, HUTCHINSON], ids=["exact", "estimated"])
    def test_every_particle_has_a_key_of_its_own(self, field: AbstractField):
        evaluated = eqx.filter_jit(field.flows)(some_params(field, 3), jnp.asarray(T), jnp.ones((8, 3)), KEY)
        velocity, divergence = map(np.asarray, evaluated)
        np.testing.assert_allclose(np.ptp(velocity, axis=0), 0.0, atol=1e-12)
        # Where the divergence is estimated, equal particles have different estimates.
        assert (np.ptp(divergence) > 1e-3) == (field is HUTCHINSON)

    @pytest.mark.parametrize("loss", [mean_square, variance])
    @pytest.mark.parametrize("time_derivative", [np.inf, -np.inf, np.nan, 5.0])
    def test_dead_particles_are_left_out(self, loss: Callable, time_derivative: float):
        alive, params = usual()
        value = loss_and_gradient(loss, params, with_dead_particles(time_derivative))
        assert_close(value, loss_and_gradient(loss, params, alive))

    @pytest.mark.parametrize("loss", [mean_square, variance])
    def test_particles_outside_the_target_are_left_out_at_t_0(self, loss: Callable):
        problem, (inside, params) = vector_problem(half_space), usual()
        particles = insert_particles(inside.particles, -9.0)
        # They are alive, since p_0 is all there is, but the time derivative is -inf.
        population = path_population(problem, 0.0, particles=particles)
        assert np.all(population.alive)
        np.testing.assert_array_equal(population.time_derivative == -np.inf, particles[:, 0] == -9.0)
        expected = loss_and_gradient(loss, params, path_population(problem, 0.0, particles=inside.particles))
        assert_close(loss_and_gradient(loss, params, population), expected)


class GaussianTransport(AbstractField):
    """The field of Proposition 3.1 where every p_t is Gaussian, phi(x) = mean' + A (x - mean).

    Its parameters are (mean, mean', A) at one t.
    """

    def init(self, key: Array, dim: int, dtype: Any) -> tuple[Array, Array, Array]:
        raise NotImplementedError

    def apply(self, params: tuple[Array, Array, Array], t: Array, x: Array) -> Array:
        mean, drift, A = params
        return drift + A @ (x - mean)


class Gaussian(NamedTuple):
    """N(mean, C) by its precision P = C^-1, and h = P mean."""

    P: np.ndarray
    h: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return np.linalg.solve(self.P, self.h)

    @property
    def law(self) -> FullNormal:
        return FullNormal(jnp.asarray(self.mean), jnp.asarray(np.linalg.inv(self.P)))

    @property
    def log_constant(self) -> float:
        """ln of the density at 0."""
        return float(0.5 * (np.linalg.slogdet(self.P / (2 * np.pi))[1] - self.h @ self.mean))


def random_gaussian(dim: int, seed: int) -> Gaussian:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((dim, dim))
    return Gaussian(root @ root.T / dim + 0.3 * np.eye(dim), rng.standard_normal(dim))


def transport(
    start: Gaussian, end: Gaussian, alpha: float, beta: float, t: float
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], float]:
    """The field of Eq. 5 between two Gaussians, around 0, and the slope of its log evidence.

    p_t has P(t) = (1-t) a^2 P0 + t P1 / b^2 and h(t) = (1-t) a h0 + t h1 / b. A Gaussian moves as it should if
    C' = A C + C A^T. Since C' = -C P' C, that is so for A = -1/2 C P', which is sigma'/sigma in one dimension.
    """
    a, b, db = 1 - alpha * t, beta + (1 - beta) * t, 1 - beta
    P = (1 - t) * a**2 * start.P + t / b**2 * end.P
    h = (1 - t) * a * start.h + t / b * end.h
    dP = -(a**2 + 2 * alpha * (1 - t) * a) * start.P + (1 / b**2 - 2 * t * db / b**3) * end.P
    dh = -(a + alpha * (1 - t)) * start.h + (1 / b - t * db / b**2) * end.h
    C = np.linalg.inv(P)
    mean = C @ h
    # ln Z_t = (1-t) ln p0(0) + t ln p1(0) + (h P^-1 h - ln det P) / 2 + const
    slope = end.log_constant - start.log_constant + dh @ mean - 0.5 * mean @ dP @ mean - 0.5 * np.trace(C @ dP)
    return (mean, C @ (dh - dP @ mean), -0.5 * C @ dP), float(slope)


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("shrinkage", [None, (0.7, 0.4)], ids=["geometric", "shrinkage"])
def test_proposition_3_1(dim: int, shrinkage: tuple[float, float] | None):
    start, end = random_gaussian(dim, 1), random_gaussian(dim, 2)
    problem = Problem.of(end.law.logdensity, start.law)
    path = Geometric() if shrinkage is None else LogWeightedShrinkage(*shrinkage, center=0.0)
    particles = 2 * normal_array(20, dim)
    for t in (0.0, 0.1, 0.5, 0.93, 1.0):
        params, slope = transport(start, end, *(shrinkage or (0.0, 1.0)), t)
        population = path_population(problem, t, path, particles)
        residuals = np.asarray(residuals_at(jax.tree.map(jnp.asarray, params), population, GaussianTransport()))
        # d/dt ln p_t itself varies over the particles; with the field, what is left of that is rounding.
        assert np.std(population.time_derivative) > 0.5
        np.testing.assert_allclose(residuals - residuals.mean(), 0.0, atol=1e-11)
        # The constant is E[d/dt ln p_t] under p_t, which is the slope of the log evidence.
        np.testing.assert_allclose(residuals, slope, atol=1e-11)
        assert np.var(residuals) < 1e-22


def test_proposition_3_1_in_one_dimension_by_standard_deviations():
    """With P = (1-t)/s0^2 + t/s1^2 the field is mean' + (sigma'/sigma) (x - mean)."""
    s0, s1, m0, m1, t = 1.5, 0.4, -1.0, 2.0, 0.3
    P = lambda t: (1 - t) / s0**2 + t / s1**2  # noqa: E731
    mean = lambda t: ((1 - t) * m0 / s0**2 + t * m1 / s1**2) / P(t)  # noqa: E731
    sigma = lambda t: P(t) ** -0.5  # noqa: E731
    drift, rate = jax.grad(mean)(t), jax.grad(sigma)(t) / sigma(t)
    start, end = (
        Gaussian(np.eye(1) / s0**2, np.array([m0 / s0**2])),
        Gaussian(np.eye(1) / s1**2, np.array([m1 / s1**2])),
    )
    params, _ = transport(start, end, 0.0, 1.0, t)
    np.testing.assert_allclose([part.item() for part in params], [mean(t), drift, rate])


def assert_keeps_structures_and_dtypes(trainer: AbstractTrainer, field: AbstractField) -> None:
    def run(population: Population) -> tuple[Any, Any]:
        params = field.init(KEY, 3, population.particles.dtype)
        memory = trainer.init(params)
        return (params, memory), trainer.fit(KEY, jnp.asarray(T), population, field, params, memory)

    population, _ = usual()
    before, (params, memory, training) = eqx.filter_eval_shape(run, population)
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)  # noqa: E731
    assert shapes((params, memory)) == shapes(before)
    assert isinstance(training, Training)
    assert [jnp.shape(leaf) for leaf in training] == 4 * [()]
    assert training.loss.dtype == population.particles.dtype
    assert jnp.issubdtype(training.num_steps.dtype, jnp.integer)
    assert training.converged.dtype == bool


@over("trainer", TRAINERS)
def test_every_trainer_keeps_structures_and_dtypes(trainer: AbstractTrainer):
    assert_keeps_structures_and_dtypes(trainer, FIELD)


# A selection holds the number of its choice, for which there is no gradient: least squares fit it.
@over("field", {name: field for name, field in (FIELDS | ESTIMATED_FIELDS).items() if name != "selection"})
def test_every_field_can_be_trained(field: AbstractField):
    assert_keeps_structures_and_dtypes(Gradient(max_steps=5), field)


@over("trainer", TRAINERS)
def test_every_trainer_reports_a_finite_loss(trainer: AbstractTrainer):
    population, params = usual()
    fitted, _, training = fit(trainer, population, params)
    assert np.isfinite(training.loss)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(fitted))


def losses_by_hand(
    optimizer: Callable[[float], optax.GradientTransformation],
    rates: Callable[[list[float]], float],
    params: PyTree,
    population: Population,
    num_steps: int,
) -> tuple[list[PyTree], list[float]]:
    """A training loop in plain optax: parameters and loss after each step; `rates` sees the losses so far."""
    state = optimizer(rates([])).init(params)
    history, losses = [], []
    for _ in range(num_steps):
        _, gradient = loss_and_gradient(mean_square, params, population)
        updates, state = optimizer(rates(losses)).update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
        losses.append(float(loss_at(mean_square, params, population)))
    return history, losses


class TestGradient:
    """The inner loop of Algorithm 3."""

    @pytest.mark.parametrize("loss", [mean_square, variance])
    def test_lowers_the_loss(self, loss: Callable):
        population, params = usual()
        _, _, training = fit(Gradient(1e-2, 300, 0.0, loss=loss), population, params)
        assert training.loss < 0.2 * loss_at(loss, params, population)

    def test_is_a_plain_loop_that_stops_at_the_threshold(self):
        population, params = usual()
        history, losses = losses_by_hand(optax.adam, lambda _: 1e-2, params, population, 12)
        assert losses == sorted(losses, reverse=True)
        for k in (1, 2, 7, 12):
            # A threshold just above the k-th loss is met at step k: the loss is tested after the update.
            fitted, _, training = fit(Gradient(1e-2, 50, losses[k - 1] * (1 + 1e-9)), population, params)
            assert training.num_steps == k
            assert training.converged
            assert_close(fitted, history[k - 1])
            assert_close(training.loss, jnp.asarray(losses[k - 1]))

    @pytest.mark.parametrize("loss", [mean_square, variance])
    def test_the_loss_is_that_of_the_returned_parameters(self, loss: Callable):
        population, params = usual()
        fitted, _, training = fit(Gradient(1e-2, 5, 0.0, loss=loss), population, params)
        assert_close(training.loss, loss_at(loss, fitted, population))

    @pytest.mark.parametrize("max_steps", [1, 2, 17])
    def test_takes_max_steps_exactly(self, max_steps: int):
        population, params = usual()
        _, _, training = fit(Gradient(1e-3, max_steps, 1e-9), population, params)
        assert training.num_steps == max_steps
        assert not training.converged

    def test_a_threshold_of_zero_is_no_threshold(self):
        population, params = usual()
        _, _, training = fit(Gradient(1e-3, 4, 0.0), population, params)
        assert training.num_steps == 4
        assert training.converged

    def test_takes_a_step_even_if_the_loss_is_low_already(self):
        population, params = usual()
        fitted, _, training = fit(Gradient(1e-3, 100, 1e9), population, params)
        assert training.num_steps == 1
        assert not np.allclose(fitted.output.bias, params.output.bias)

    @pytest.mark.parametrize("name", ["adam", "sgd-momentum"])
    def test_warm_start(self, name: str):
        population, params = usual()
        optimizer = getattr(TRAINERS[name], "optimizer")  # noqa: B009
        trainer = lambda max_steps: Gradient(1e-3, max_steps, 0.0, optimizer=optimizer)  # noqa: E731
        once = fit(trainer(10), population, params)
        half, memory, _ = fit(trainer(4), population, params)
        twice = fit(trainer(6), population, half, memory)
        assert_close((twice[:2], twice[2].loss), (once[:2], once[2].loss))
        forgetful, _, _ = fit(trainer(6), population, half)
        assert not np.allclose(forgetful.output.bias, once[0].output.bias, rtol=1e-6)

    def test_the_learning_rate_drops_for_good(self):
        population, params = usual()
        # So large a first rate that losses fall below the level and rise above it again.
        fast, slow, below, num_steps = 1.0, 0.5, 10.0, 12
        rates = lambda losses: slow if any(loss < below for loss in losses) else fast  # noqa: E731
        history, losses = losses_by_hand(optax.adam, rates, params, population, num_steps)
        first = next(k for k, loss in enumerate(losses) if loss < below)
        assert first > 0
        assert max(losses[first:]) > below
        drop = LearningRateDrop(below, slow)
        for k in range(1, num_steps + 1):
            fitted, memory, training = fit(Gradient(fast, k, 0.0, drop), population, params)
            assert_close((fitted, training.loss), (history[k - 1], jnp.asarray(losses[k - 1])))
            assert memory.dropped == (k > first)

    def test_a_dropped_learning_rate_stays_dropped_at_the_next_t(self):
        population, params = usual()
        trainer = Gradient(1e-1, 3, 0.0, LearningRateDrop(1e-9, 1e-3), optimizer=optax.sgd)
        memory = as_arrays(trainer).init(params)
        fitted, memory, _ = fit(trainer, population, params, memory._replace(dropped=jnp.asarray(True)))
        assert memory.dropped
        expected, _, _ = fit(Gradient(1e-3, 3, 0.0, optimizer=optax.sgd), population, params)
        assert_close(fitted, expected)

    def test_sgd_is_gradient_descent(self):
        population, params = usual()
        fitted, _, _ = fit(Gradient(1e-3, 5, 0.0, optimizer=optax.sgd), population, params)
        for _ in range(5):
            _, gradient = loss_and_gradient(mean_square, params, population)
            params = jax.tree.map(lambda theta, g: theta - 1e-3 * g, params, gradient)
        assert_close(fitted, params)

    @pytest.mark.parametrize("optimizer", [optax.adam, partial(optax.adamw, weight_decay=0.1)], ids=["adam", "adamw"])
    def test_input_scales_are_observed_and_not_trained(self, optimizer: Callable):
        (population, _), field = usual(), MLP(4, standardise=True)
        trainer = Gradient(1e-1, 5, 0.0, optimizer=optimizer)
        params, _, _ = fit(trainer, population, some_params(field, 3), field=field)
        particles = np.asarray(population.particles)
        assert_close((params.location, params.scale), (particles.mean(axis=0), particles.std(axis=0)))

    @pytest.mark.parametrize("time_derivative", [np.inf, np.nan])
    def test_dead_particles_do_not_train(self, time_derivative: float):
        alive, params = usual()
        trainer = Gradient(1e-2, 5, 0.0)
        dead = with_dead_particles(time_derivative)
        assert_close(fit(trainer, dead, params), fit(trainer, alive, params), 1e-8)

    def test_every_step_of_an_estimated_divergence_has_a_key_of_its_own(self):
        # With a minute rate the parameters stay, so that the losses differ by their probes alone.
        population, _ = usual()
        params = some_params(HUTCHINSON, 3)
        losses = [float(fit(Gradient(1e-12, n, 0.0), population, params, field=HUTCHINSON)[2].loss) for n in (1, 2, 3)]
        assert min(np.abs(np.diff([*losses, losses[0]]))) > 1e-3


def halves() -> tuple[Population, Population, PyTree]:
    """Sixteen particles, the last eight of them, and a field's parameters."""
    population, params = usual()
    return population, jax.tree.map(lambda leaf: leaf[8:], population), params


class TestHeldOut:
    """Gradient descent on some of the particles, which the others judge."""

    def test_the_parameters_kept_are_those_with_the_least_loss_on_the_others(self):
        population, others, params = halves()
        taught = jax.tree.map(lambda leaf: leaf[:8], population)
        history = [params, *losses_by_hand(optax.adam, lambda _: 0.3, params, taught, 30)[0]]
        losses = [float(loss_at(mean_square, theta, others)) for theta in history]
        # The loss on the others falls first, and rises in the end: there is something to stop for.
        assert 0 < np.argmin(losses) < 30
        assert losses[-1] > 1.1 * min(losses)
        fitted, _, training = fit(Gradient(0.3, 30, None, held_out=0.5, patience=30), population, params)
        assert_close(fitted, history[int(np.argmin(losses))])
        assert float(training.loss) == pytest.approx(min(losses))
        residuals, rates = residuals_at(fitted, others), others.time_derivative
        assert float(training.r2) == pytest.approx(1 - np.var(residuals) / np.var(rates))

    def test_training_stops_when_their_loss_has_not_fallen_for_a_while(self):
        population, others, params = halves()
        taught = jax.tree.map(lambda leaf: leaf[:8], population)
        history = [params, *losses_by_hand(optax.adam, lambda _: 0.3, params, taught, 40)[0]]
        losses = [float(loss_at(mean_square, theta, others)) for theta in history]
        best, age, last = losses[0], 0, 40
        for k, loss in enumerate(losses[1:], 1):
            best, age = (loss, 0) if loss < best else (best, age + 1)
            if age == 3:
                last = k
                break
        assert last < 40
        _, _, training = fit(Gradient(0.3, 40, None, held_out=0.5, patience=3), population, params)
        assert training.num_steps == last

    def test_a_loss_that_is_nan_is_not_the_least(self):
        population, others, params = halves()
        fitted, _, training = fit(Gradient(1e300, 5, None, held_out=0.5), population, params)
        assert np.isfinite(training.loss)
        assert_close(training.loss, loss_at(mean_square, fitted, others))

    def test_all_are_trained_on_where_none_is_held_out(self):
        population, params = usual()
        _, _, training = fit(Gradient(1e-2, 2, 0.0), population, params)
        assert np.isnan(training.r2)


def test_no_training_reports_the_loss_and_leaves_the_field():
    population, params = usual()
    fitted, memory, training = fit(NoTraining(), population, params)
    assert_close(fitted, params)
    assert memory is None
    assert (training.num_steps, training.converged) == (0, True)
    assert_close(training.loss, loss_at(mean_square, params, population))


def test_all_particles_outside_the_support_give_no_loss():
    population, params = usual()
    population = eqx.tree_at(lambda p: p.logdensity, population, jnp.full(16, -jnp.inf))
    fitted, _, training = fit(Gradient(1e-2, 2, 0.0), population, params)
    assert training.loss == 0.0
    assert_close(fitted, params)


# pyright: reportArgumentType=false
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Gradient(learning_rate=0.0), ValueError, "learning_rate must be positive, got 0.0; "),
        (lambda: Gradient(learning_rate=np.nan), ValueError, "learning_rate must be finite, got nan; "),
        (lambda: Gradient(max_steps=0), ValueError, "max_steps must be at least 1, got 0; "),
        (lambda: Gradient(max_steps=1.5), TypeError, "max_steps must be a whole number, got 1.5; "),
        (lambda: Gradient(threshold=-1.0), ValueError, "threshold must not be negative, got -1.0; "),
        (lambda: Gradient(threshold="low"), TypeError, "threshold must be a number, got 'low'; "),
        (lambda: Gradient(optimizer="adam"), TypeError, "optimizer must be a function .*, got 'adam'; "),
        (lambda: Gradient(loss="mse"), TypeError, "loss must be a function .*, got 'mse'; "),
        (lambda: Gradient(held_out=1.0), ValueError, r"held_out must lie in \[0, 0.9\], got 1.0; "),
        (lambda: Gradient(patience=0), ValueError, "patience must be at least 1, got 0; "),
        (lambda: Gradient(drop=1e-2), TypeError, "drop must .*LearningRateDrop.*, got 0.01; "),
        (lambda: LearningRateDrop(below=0.0), ValueError, "below must be positive, got 0.0; "),
        (lambda: LearningRateDrop(learning_rate=-1.0), ValueError, "learning_rate must be positive, got -1.0; "),
    ],
)
def test_bad_arguments(make: Callable[[], object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
