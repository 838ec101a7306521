"""Exact PGPS: weights by their formula, evidence without bias, maps that do not fold, and what it says of itself."""

import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from jax.scipy.stats import norm
from jaxtyping import Array, Scalar
from scipy import stats
from scipy.special import logsumexp

import pgps
from helpers import assert_close, vector_problem
from pgps import adjustments, fields, methods, metrics, paths, steppers, targets, trainers
from pgps.density import Population, Problem
from pgps.methods import PGPS
from pgps.methods.base import State
from pgps.methods.doubts import path_doubts, suspects_edge
from pgps.weights import Weighing, residual

KEY = jax.random.key(5)
PATH = paths.LogWeightedShrinkage(0.5, 0.6)
NEVER = Weighing(resample_below=0.0)


def unmoved(**parts) -> PGPS:
    """PGPS with weights, without resampling and without moves, so that all that happens is the flow."""
    usual = {"path": PATH, "stepper": steppers.Fixed(0.01), "adjustment": adjustments.NoAdjustment(), "weighing": NEVER}
    return PGPS(**(usual | parts))


@eqx.filter_jit
def one_step(method: PGPS, problem: Problem, num_particles: int) -> tuple[State, State]:
    before = method.init(KEY, problem, num_particles)
    return before, method.step(KEY, before, problem)[0]


def increments_of(state: State) -> np.ndarray:
    """Log-weights that began as equal ones and were never resampled, before they were normalised."""
    weights = state.weights
    assert weights is not None
    each = weights.on_islands.shape[1]
    return np.asarray(weights.on_islands + weights.log_evidences[:, None] + np.log(each))


class Swirl(fields.AbstractField):
    """A fixed field whose Jacobian is full and differs from place to place."""

    def init(self, key, dim, dtype) -> None:
        return None

    def apply(self, params: None, t: Scalar, x: Array) -> Array:
        return jnp.array([jnp.sin(x[1]) + 0.5 * x[0], x[0] * x[1] - 1.0])


@pytest.mark.usefixtures("x64")
def test_increments_by_autodiff():
    problem, field = vector_problem(dim=2), Swirl()
    before, after = one_step(unmoved(field=field, trainer=trainers.NoTraining()), problem, 20)
    t, dt, x = jnp.zeros(()), after.clock.t, before.population.particles
    assert 0 < dt <= 0.01

    @jax.jit
    @jax.vmap
    def by_hand(x: Array) -> tuple[Array, Array]:
        move = lambda x: x + dt * field.apply(None, t, x)  # noqa: E731
        log_det = jnp.log(jnp.abs(jnp.linalg.det(jax.jacrev(move)(x))))
        log_path = lambda t, x: PATH.logdensity(t, x, problem)  # noqa: E731
        return move(x), log_path(dt, move(x)) + log_det - log_path(t, x)

    moved, increments = by_hand(x)
    assert_close(after.population.particles, moved)
    np.testing.assert_allclose(increments_of(after).reshape(-1), increments, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_a_field_does_not_know_the_particles_that_it_moves():
    problem = vector_problem(dim=2)
    method = unmoved(field=fields.Affine(), trainer=trainers.LeastSquares())
    state = eqx.filter_jit(method.init)(KEY, problem, 40)
    step = eqx.filter_jit(method.step)
    # Each island's field, by its coefficients.
    fitted = lambda state: np.asarray(step(KEY, state, problem)[0].memory.params.coefficients)  # noqa: E731
    on_first = jnp.arange(40) < 20
    other = paths.evaluate(PATH, state.clock.t, state.population.particles + 0.3, problem)
    usual = fitted(state)
    assert np.all(np.any(usual, axis=1))
    for island, elsewhere in enumerate([on_first, ~on_first]):
        changed = fitted(with_population(state, other.where(elsewhere, state.population)))
        np.testing.assert_array_equal(changed[island], usual[island])
        assert np.any(changed[1 - island] != usual[1 - island])


def with_population(state: State, population: Population) -> State:
    return eqx.tree_at(lambda state: state.population, state, population)


@pytest.mark.usefixtures("x64")
def test_without_field_and_moves_it_is_importance_sampling():
    problem = vector_problem(dim=2)
    method = unmoved(
        path=paths.Geometric(), field=fields.Zero(), trainer=trainers.NoTraining(), stepper=steppers.Fixed(0.25)
    )
    result = pgps.sample(problem.logdensity_fn, problem.initial, key=KEY, num_particles=40, method=method)
    key_init, _ = jax.random.split(KEY)
    x = problem.draw(jax.random.split(key_init)[0], 40)
    assert_close(result.particles, x)
    log_ratios = np.asarray(jax.vmap(lambda x: problem.log_target(x) - problem.log_initial(x))(x))
    w = np.exp(log_ratios).reshape(2, 20)
    assert result.log_evidence == pytest.approx(np.log(w.mean()), abs=1e-12)
    normalised = np.exp(result.log_weights - np.max(result.log_weights))
    np.testing.assert_allclose(normalised / normalised.sum(), w.reshape(-1) / w.sum(), rtol=1e-10)
    assert result.ess == pytest.approx(w.sum() ** 2 / np.sum(w**2))
    # Both ends of the path are known at every particle: it stands still, and nothing more is evaluated.
    assert result.num_evaluations.gradients == 40


class Waves(fields.AbstractField):
    """A field of fixed waves, so steep that a step of the usual length would fold the space many times."""

    def init(self, key, dim, dtype) -> None:
        return None

    def apply(self, params: None, t: Scalar, x: Array) -> Array:
        return 1e3 * jnp.sin(20 * x)


@pytest.mark.usefixtures("x64")
def test_a_field_that_would_fold_the_space_shortens_the_step():
    field = Waves()
    method = unmoved(field=field, trainer=trainers.NoTraining(), stepper=steppers.Fixed(0.5))
    before, after = one_step(method, vector_problem(dim=2), 20)
    steepest = np.max(np.abs(2e4 * np.cos(20 * np.asarray(before.population.particles))))
    # Half of where it folds, or up to two halvings below.
    assert 0.1 < float(after.clock.t) * steepest <= 0.5 + 1e-9
    increments = increments_of(after)
    assert np.all(np.isfinite(increments))
    assert np.ptp(increments) > 0.01
    # So that the order along an axis is kept, for neighbours a hair's breadth apart.
    x = before.population.particles[:, 0]
    move = lambda x: x + after.clock.t * field.apply(None, jnp.zeros(()), x)  # noqa: E731
    assert np.all(np.asarray(move(x + 1e-6) > move(x)))


class Contraction(fields.AbstractField):
    """The exact field of the geometric path from N(0, 1) to N(0, 1/100): precisions grow as 1 + 99 t."""

    def init(self, key, dim, dtype) -> None:
        return None

    def apply(self, params: None, t: Scalar, x: Array) -> Array:
        return -0.5 * 99 / (1 + 99 * t) * x


@pytest.mark.usefixtures("x64")
def test_the_length_of_a_step_is_learnt_from_the_last_one():
    dt = 0.005
    method = unmoved(
        path=paths.Geometric(), field=Contraction(), trainer=trainers.NoTraining(), stepper=steppers.Fixed(dt)
    )
    problem = Problem.of(lambda x: -50 * jnp.sum(x**2), pgps.Normal(jnp.zeros(3), jnp.ones(3)))
    step, state = eqx.filter_jit(method.step), eqx.filter_jit(method.init)(KEY, problem, 2000)
    reaches, truths = [], []
    for k in range(8):
        reaches.append(float(state.memory.reach))
        truths.append(exact_reach(float(state.clock.t), dt))
        state, _ = step(jax.random.fold_in(KEY, k), state, problem)
    assert reaches[0] == 1
    assert truths[0] < 0.9
    # The truth moves from step to step, and the reach follows it one step behind.
    np.testing.assert_allclose(reaches[3:], truths[2:-1], rtol=0.02)


def exact_reach(t: float, dt: float) -> float:
    """How much of dt phi(x) takes N(0, 1 / (1 + 99 t)) to N(0, 1 / (1 + 99 (t + dt)))."""
    rate = 0.5 * 99 / (1 + 99 * t)
    return (1 - np.sqrt((1 + 99 * t) / (1 + 99 * (t + dt)))) / (rate * dt)


def two_modes(x: Array) -> Array:
    """0.3 N(-2, 0.5^2) + 0.7 N(1.5, 0.7^2), times 5."""
    z, logpdf = x[0], jax.scipy.stats.norm.logpdf
    parts = jnp.array([jnp.log(0.3) + logpdf(z, -2.0, 0.5), jnp.log(0.7) + logpdf(z, 1.5, 0.7)])
    return jnp.log(5.0) + jax.nn.logsumexp(parts)


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_fresh_particles_have_an_unbiased_evidence():
    result = pgps.sample(two_modes, pgps.Normal(shape=(1,)), key=KEY)
    fresh = result.draw(jax.random.key(8), 20_001)
    assert fresh.particles.shape == (20_001, 1)
    assert fresh.log_evidence_error is not None
    assert fresh.log_evidence is not None
    assert fresh.ess is not None
    assert 1e-4 < fresh.log_evidence_error < 0.02
    assert abs(fresh.log_evidence - np.log(5)) < 4 * fresh.log_evidence_error
    # Means over them, too: 0.3 * -2 + 0.7 * 1.5 = 0.45, where the particles' standard deviation is 1.7.
    weights = np.exp(fresh.log_weights - np.max(fresh.log_weights))
    assert np.average(fresh.particles[:, 0], weights=weights) == pytest.approx(
        0.45, abs=4 * 1.7 / np.sqrt(fresh.ess / 4)
    )
    # Eleven chunks of 1819: each pays for the first evaluation, one per step, and the moves.
    assert fresh.num_evaluations.gradients % (11 * 1819) == 0
    assert fresh.num_evaluations.gradients > 11 * 1819 * len(result.trace["t"])
    again = result.draw(jax.random.key(8), 20_001)
    np.testing.assert_array_equal(again.particles, fresh.particles)
    equal = fresh.resample(jax.random.key(9), 5000)
    # Their mean has the error of the weighted ones besides its own.
    assert np.mean(equal) == pytest.approx(0.45, abs=4 * 1.7 * np.sqrt(1 / 5000 + 4 / fresh.ess))


QUICK = {
    "field": fields.Zero(),
    "trainer": trainers.NoTraining(),
    "moves": adjustments.MALA(precondition=True),
    "scouting": None,
}


def test_fresh_particles_are_others_with_the_runs_own_key_too():
    still = unmoved(field=fields.Zero(), trainer=trainers.NoTraining(), stepper=steppers.Fixed(0.5))
    law = pgps.Normal(shape=(1,))
    result = pgps.sample(law.logdensity, law, key=KEY, num_particles=10, method=still)
    assert not np.isin(result.draw(KEY, 10).particles, result.particles).any()


def test_what_is_doubtful_about_a_run_is_doubtful_about_draws():
    """Values of the log-density of millions are rounded by a quarter, in the run and in all that repeats it."""
    quick = pgps.exact(**QUICK)
    with pytest.warns(pgps.PGPSWarning, match="knows them to 0.25 only"):
        result = pgps.sample(
            lambda x: -0.5 * jnp.sum((x - 1) ** 2) - 4e6, pgps.Normal(shape=(2,)), key=KEY, method=quick
        )
    drawn = result.draw(jax.random.key(1), 4000)
    assert drawn.warnings == result.warnings
    assert drawn.log_evidence_error is not None
    assert drawn.log_evidence_error > 0.1


def test_a_collapse_that_resampling_hides_is_doubted():
    """One step to a law whose weights have an infinite variance, and equal weights after it."""
    method = pgps.exact(0.0, 1.0, **QUICK)
    method = eqx.tree_at(lambda method: method.stepper, method, steppers.Fixed(1.0))
    with pytest.warns(pgps.PGPSWarning, match="heavy tail"):
        result = pgps.sample(
            lambda x: -0.5 * jnp.sum(x**2) / 1.6**2, pgps.Normal(shape=(8,)), key=KEY, num_particles=1000, method=method
        )
    assert result.trace["ess"][-1] < 150
    assert result.ess is not None
    assert result.ess > 500


@pytest.mark.usefixtures("x64")
def test_particles_stay_in_single_precision_where_jax_has_double():
    law = pgps.Normal(jnp.zeros(2, jnp.float32), jnp.full(2, 3.0, jnp.float32))
    result = pgps.sample(lambda x: -0.5 * jnp.sum((x - 1) ** 2), law, key=KEY, num_particles=200)
    assert result.particles.dtype == jnp.float32
    assert result.status == pgps.Status.COMPLETED
    assert not any("no second opinion" in doubt for doubt in result.warnings)


def test_resampling_has_the_scheme_that_is_asked_for():
    calls = []

    def counted(key: Array, log_weights: Array) -> Array:
        calls.append(log_weights.shape)
        return residual(key, log_weights)

    method = unmoved(
        field=fields.Zero(), trainer=trainers.NoTraining(), stepper=steppers.Fixed(0.5), weighing=Weighing(1.0, counted)
    )
    result = pgps.sample(lambda x: -jnp.sum(x**2), pgps.Normal(shape=(1,)), key=KEY, num_particles=60, method=method)
    assert set(calls) == {(30,)}
    assert len(np.unique(result.particles)) < 60
    with pytest.raises(TypeError, match="scheme must be"):
        Weighing(scheme=0.5)  # pyright: ignore[reportArgumentType]


def test_a_result_without_fields_cannot_draw(tmp_path):
    result = pgps.sample(two_modes, pgps.Normal(shape=(1,)), key=KEY, num_particles=20, method=methods.Langevin(0.1, 2))
    with pytest.raises(ValueError, match="this result holds no fitted fields to draw with"):
        result.draw(KEY, 10)
    with pytest.raises(ValueError, match="num must be"):
        result.draw(KEY, 1)


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_nine_modes_are_found_in_proportion():
    target, initial = targets.nine_gaussians()
    for result in pgps.sample_many(target, initial, keys=jax.random.split(KEY, 3), num_particles=1000):
        assert result.log_evidence_error is not None
        assert result.log_evidence is not None
        assert result.log_evidence_error < 0.2
        assert abs(result.log_evidence) <= 4 * result.log_evidence_error
        weights = np.exp(result.log_weights - np.max(result.log_weights))
        masses = np.bincount(target.nearest_mode(result.particles), weights / weights.sum(), minlength=9)
        # Independent draws would have sqrt(p (1 - p) / N); families and weights about double it.
        np.testing.assert_allclose(masses, 1 / 9, atol=5 * 2 * np.sqrt(8 / 81 / 1000))


def test_a_funnel_is_filled_and_named():
    target, initial = targets.funnel()
    with pytest.warns(pgps.PGPSWarning, match="the density is a funnel, .* times as wide at its mouth as at its neck"):
        result = pgps.sample(target, initial, key=KEY)
    # Moves of one step size everywhere lose 0.5; these lose 0.02 on average, with a standard deviation of 0.03.
    assert result.log_evidence == pytest.approx(0.0, abs=0.15)


def test_a_model_with_a_logarithmic_scale_needs_no_help():
    """Eight schools, not centred: a shrunk target would explode, so the path does not shrink it."""
    effects = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def logdensity(x: Array) -> Array:
        mu, log_tau, z = x[0], x[1], x[2:]
        tau = jnp.exp(log_tau)
        prior = norm.logpdf(mu, 0.0, 5.0) + log_tau - jnp.log1p((tau / 5) ** 2) + jnp.log(2 / jnp.pi / 5)
        likelihood = jnp.sum(norm.logpdf(effects, mu + tau * z, errors))
        return prior + jnp.sum(norm.logpdf(z)) + likelihood

    with warnings.catch_warnings(action="error"):
        # Of 24 keys one, which is KEY, has a run whose largest weights are doubted.
        result = pgps.sample(logdensity, pgps.Normal(0.0, 2.0, shape=(10,)), key=jax.random.key(0))
    assert len(result.trace["t"]) < 40
    assert np.all(result.trace["beta"] == 1)
    # Given mu and tau the effects are Gaussian, which leaves two integrals for a grid.
    mu, log_tau = (grid.ravel() for grid in np.meshgrid(np.linspace(-25, 30, 300), np.linspace(-12, 5, 600)))
    tau = np.exp(log_tau)
    terms = stats.norm.logpdf(mu, 0, 5) + log_tau - np.log1p((tau / 5) ** 2) + np.log(2 / np.pi / 5)
    for effect, error in zip(np.asarray(effects), np.asarray(errors), strict=True):
        terms = terms + stats.norm.logpdf(effect, mu, np.hypot(error, tau))
    truth = logsumexp(terms) + np.log(55 / 299 * 17 / 599)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert result.log_evidence_error < 0.05
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_error


@pytest.mark.parametrize("num_particles", [5, 7, 4, 2])
def test_islands_need_an_even_number_of_particles(num_particles: int):
    traced = []
    with pytest.raises(
        ValueError, match=f"num_particles must be even and 6 or more for weights, got {num_particles}; "
    ):
        pgps.sample(
            lambda x: traced.append(x) or -jnp.sum(x**2),
            pgps.Normal(shape=(1,)),
            key=KEY,
            num_particles=num_particles,
        )
    # It was looked at by the checks, with shapes alone, and not evaluated.
    assert all(isinstance(x, Tracer) for x in traced)


@pytest.mark.parametrize(
    ("field", "trainer"),
    [
        (fields.Zero(), trainers.NoTraining),
        (fields.MLP(8), trainers.Gradient),
        (fields.Kernel(20), trainers.LeastSquares),
    ],
    ids=lambda member: type(member).__name__,
)
def test_any_field_has_a_trainer_that_suits_it(field: fields.AbstractField, trainer: type):
    """The evidence of two Gaussians is right by any, since weights are exact: no field at all, a network, a kernel."""
    moves = adjustments.HMC(0.5, num_leapfrog=2, precondition=True)
    method = pgps.exact(field=field, moves=moves, conditional_ess=0.95, scouting=None)
    assert isinstance(method.trainer, trainer)
    initial = pgps.Normal(0.0, 2.0, shape=(2,))
    result = pgps.sample(two_gaussians, initial, key=KEY, num_particles=400, method=method)
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert result.log_evidence_error < 0.3
    assert abs(result.log_evidence - math.log(2 * math.pi)) < 4 * result.log_evidence_error
    assert np.any(result.trace["field_norm"] > 0) == (not isinstance(field, fields.Zero))


def two_gaussians(x: jax.Array) -> jax.Array:
    """Half of each, with an evidence of 2 pi."""
    return jnp.logaddexp(-jnp.sum((x - 2) ** 2), -jnp.sum((x + 2) ** 2))


def test_moves_that_shift_the_law_are_refused():
    with pytest.raises(TypeError, match=r"adjustment must be MALA, HMC or NoAdjustment with weights, got Langevin"):
        pgps.exact(moves=adjustments.Langevin())
    with pytest.raises(ValueError, match=r"resample_below must lie in \[0, 1\], got 1.5; "):
        pgps.exact(resample_below=1.5)


@pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")
def test_fresh_particles_of_many_runs_are_of_the_density_of_each():
    shares, keys, start = (0.05, 0.95), jax.random.split(KEY, 3), pgps.Normal(shape=(2,))
    means, scales = jnp.array([[-1.0, 0.0], [1.0, 0.5]]), jnp.array([0.5, 0.7])
    densities = [targets.GaussianMixture(jnp.array([share, 1 - share]), means, scales) for share in shares]
    method = pgps.exact(0.0, 1.0, field=fields.Affine(), moves=adjustments.MALA(num_steps=2), scouting=None)
    results = pgps.sample_many(densities, start, keys=keys[:2], num_particles=100, method=method)
    for result, share in zip(results, shares, strict=True):
        fresh = result.draw(keys[2], 400)
        moments = metrics.moments(fresh.particles, fresh.log_weights)
        assert abs(moments.mean[0] - (1 - 2 * share)) < 5 * moments.mean_error[0]


@pytest.mark.parametrize("dim", [4, 20])
def test_a_gaussian_that_is_ten_thousand_times_as_long_as_wide(dim: int):
    """Oblique to the coordinates, from a law that is a thousand times as wide as its narrowest part."""
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0]
    lengths = np.logspace(-2, 2, dim)
    inverse = jnp.asarray(directions.T / lengths[:, None], jnp.float32)

    def logdensity(x: Array) -> Scalar:
        return -0.5 * jnp.sum((inverse @ x) ** 2)

    result = pgps.sample(logdensity, pgps.Normal(0.0, 10.0, shape=(dim,)), key=KEY)
    truth = dim / 2 * np.log(2 * np.pi) + np.sum(np.log(lengths))
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert result.log_evidence_error < 0.05
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_error
    assert not result.warnings


def test_particles_that_come_back_from_log_densities_of_minus_1e29_bring_no_weight():
    """A stochastic volatility model. Its values round by more than all others are worth, and fields lead uphill."""
    generator = np.random.default_rng(2)
    volatility = np.zeros(60)
    for i in range(1, 60):
        volatility[i] = 0.95 * volatility[i - 1] + 0.3 * generator.normal()
    y = jnp.asarray(np.exp(volatility / 2) * generator.normal(size=60))

    def logdensity(x):
        mean, persistence, scale = x[0], jnp.tanh(x[1]), jnp.exp(x[2])
        _, h = jax.lax.scan(lambda h, noise: 2 * (mean + persistence * (h - mean) + scale * noise,), mean, x[3:])
        return -0.5 * jnp.sum(x**2) - 0.5 * jnp.sum(h + y**2 * jnp.exp(-h))

    initial = pgps.Normal(shape=(63,))
    values = jax.vmap(logdensity)(jax.vmap(initial.sample)(jax.random.split(KEY, 1000)))
    assert np.min(values) < -1e29
    # Before, this run had an evidence of exp(4e24) after 29 steps, and went on for 1914.
    with pytest.warns(pgps.PGPSWarning, match="proposals were refused"):
        result = pgps.sample(logdensity, initial, key=jax.random.key(103), method=pgps.exact(scouting=None))
    assert result.status == pgps.Status.COMPLETED
    assert np.max(np.abs(np.diff(result.trace["log_evidence"]))) < 10
    # Moves are those of particles that have weight.
    assert np.min(result.trace["covered"]) > 0.1


def trace_of_steps(dts: list[float]) -> dict[str, np.ndarray]:
    """A trace in which all is well but, perhaps, the steps."""
    num = len(dts)
    fine = {"width_spread": 1.0, "width_ratio": 1.0, "covered": 1.0, "disagreement": 0.0, "inside": 1.0}
    return {
        "t": np.cumsum(dts),
        "dt": np.array(dts),
        "has_edge": np.zeros(num, bool),
        "keeps_support": np.ones(num, bool),
        "adjustment_steps": np.ones(num),
        **{name: np.full(num, value) for name, value in fine.items()},
    }


@pytest.mark.parametrize(
    ("dts", "doubted"),
    [
        # As long as the way so far: a narrow target takes shape.
        ([1e-9, 1e-9, 2e-9, 4e-9, 1.0 - 8e-9], False),
        ([0.3, 1e-7, 1e-7, 0.7 - 2e-7], True),
        ([0.3, 1e-3, 0.699], False),
    ],
    ids=["growing", "collapsed", "short"],
)
def test_steps_that_collapse_are_doubted(dts: list[float], doubted: bool):
    found = path_doubts(trace_of_steps(dts), adjustments.HMC())
    assert [doubt.startswith("time steps fell to 1e-07 at t = 0.3") for doubt in found] == [True] * doubted


@pytest.mark.parametrize(("num_moves", "covered", "doubted"), [(20, 0.3, True), (20, 0.38, False), (5, 0.3, False)])
def test_moves_that_missed_their_aim_at_their_largest_number_are_doubted(num_moves, covered, doubted):
    """The aim is 0.4; below 0.25 they are doubted at any number."""
    calm = {
        "width_spread": 1,
        "width_ratio": 1,
        "disagreement": 1,
        "pareto_k": 0,
        "num_ancestors": 500,
        "dt": 0.5,
        "ess": 1,
    }
    last = calm | {"t": 1, "acceptance": 0.8, "faults": 0, "covered": covered, "adjustment_steps": num_moves}
    trace = {
        name: np.array([value])
        for name, value in (last | {"has_edge": False, "keeps_support": True, "inside": 1}).items()
    }
    found = pgps.exact().doubts(trace)
    assert [doubt.startswith("the last moves covered") for doubt in found] == [True] * doubted


@pytest.mark.parametrize(("found_at", "suspected"), [(None, False), (0, True), (2, True), (-1, False)])
def test_an_edge_is_suspected_if_the_first_weights_did_not_know_it(found_at: int | None, suspected: bool):
    """It is found by a step, the first one perhaps; before all steps (-1) it is known."""
    steps = np.arange(4)
    has_edge = np.zeros(4, bool) if found_at is None else steps >= found_at
    trace = {"t": (steps + 1) / 4, "has_edge": has_edge, "finds_edge": steps == found_at, "inside": np.ones(4)}
    assert suspects_edge(trace) == suspected
