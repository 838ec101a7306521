"""Eq. 5 and the closed forms of appendix B, and what every path must keep: ends, derivatives, cost."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import pgps
from helpers import (
    PATHS,
    PROBLEMS,
    HostDensity,
    as_arrays,
    assert_close,
    box_problem,
    bumpy,
    normal_array,
    over,
    path_population,
    path_values,
    tree_problem,
    vector_problem,
)
from pgps.density import Population, Problem
from pgps.paths import AbstractPath, CautiousShrinkage, Geometric, LogWeightedShrinkage, PathValue, evaluate, temper

KEY = jax.random.key(2)
TIMES = (0.0, 0.17, 0.62, 1.0)


class Bridge(AbstractPath):
    """A user's path, which gives its log-density and nothing else."""

    def logdensity(self, t: Array, x: Array, problem: Problem) -> Array:
        ends = temper(1 - t, problem.log_initial(x)) + temper(t, problem.log_target(x))
        return ends - 0.1 * t * (1 - t) * jnp.sum((x - 1.0) ** 2)


compiled_evaluate = eqx.filter_jit(evaluate)


@eqx.filter_jit
def populations(path: AbstractPath, times: Array, particles: Array, problem: Problem) -> Population:
    """The particles evaluated at each of the times."""
    return jax.vmap(lambda t: evaluate(path, t, particles, problem))(times)


@eqx.filter_jit
def ends(problem: Problem, particles: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Value and score of the initial law, and of the target."""
    start, end = (jax.vmap(jax.value_and_grad(end))(particles) for end in (problem.log_initial, problem.log_target))
    return start, end


ANY_PATH = PATHS | {"user": Bridge()}


def member(path: AbstractPath, t: Array, x: Array, problem: Problem) -> PathValue:
    """What the path itself says."""
    return path.evaluate(t, x, problem)


def derivatives(logdensity: Callable[[Array, Array], Array], t: Array, x: Array) -> PathValue:
    """A log-density and its derivatives, one by one."""
    score, time_derivative = jax.grad(logdensity, argnums=1), jax.grad(logdensity, argnums=0)
    return PathValue(logdensity(t, x), score(t, x), time_derivative(t, x))


def autodiff(path: AbstractPath, t: Array, x: Array, problem: Problem) -> PathValue:
    """The path's log-density, differentiated."""
    return derivatives(lambda t, x: path.logdensity(t, x, problem), t, x)


def equation_5(settings: Any, t: Array, x: Array, problem: Problem) -> PathValue:
    """Eq. 5 as printed, with x measured from a centre, differentiated."""
    alpha, beta, center = settings

    def logdensity(t: Array, x: Array) -> Array:
        x_a = center + (1 - alpha * t) * (x - center)
        x_b = center + (x - center) / (beta + (1 - beta) * t)
        return (1 - t) * problem.log_initial(x_a) + t * problem.log_target(x_b)

    return derivatives(logdensity, t, x)


def some_particles(problem: Problem, num: int = 4) -> Array:
    return 2 * normal_array(num, problem.structure.dim, seed=7)


def assert_equation_5(path: AbstractPath, alpha: float, beta: float, center: Array, problem: Problem) -> None:
    times, particles = jnp.array(TIMES), some_particles(problem)
    settings = as_arrays((alpha, beta, center))
    expected = path_values(equation_5, settings, times, particles, problem)
    assert_close(path_values(member, as_arrays(path), times, particles, problem)[:3], expected[:3])


@over("path", ANY_PATH)
@over("make_problem", PROBLEMS)
@pytest.mark.usefixtures("x64")
def test_evaluate_is_the_value_and_its_derivatives(path: AbstractPath, make_problem: Callable[[], Problem]):
    problem = make_problem()
    arguments = as_arrays(path), jnp.array(TIMES), some_particles(problem), problem
    assert_close(path_values(member, *arguments)[:3], path_values(autodiff, *arguments)[:3])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("beta", [0.1, 0.8, 1.0])
@pytest.mark.parametrize("center", [None, 0.0, -1.3])
@over("make_problem", PROBLEMS)
@pytest.mark.usefixtures("x64")
def test_log_weighted_shrinkage_is_equation_5(
    alpha: float, beta: float, center: float | None, make_problem: Callable[[], Problem]
):
    problem = make_problem()
    c = problem.center if center is None else jnp.full(problem.structure.dim, center)
    assert_equation_5(LogWeightedShrinkage(alpha, beta, center), alpha, beta, c, problem)


@over("make_problem", PROBLEMS)
@pytest.mark.usefixtures("x64")
def test_geometric_is_shrinkage_with_none(make_problem: Callable[[], Problem]):
    problem = make_problem()
    assert_equation_5(Geometric(), 0.0, 1.0, problem.center, problem)


@pytest.mark.usefixtures("x64")
def test_shrinkage_around_a_pytree():
    center = {"b": jnp.asarray(0.9), "w": jnp.array([[0.1, -0.2], [0.3, -2.0]])}
    flat = jnp.array([0.9, 0.1, -0.2, 0.3, -2.0])
    assert_equation_5(LogWeightedShrinkage(0.6, 0.4, center), 0.6, 0.4, flat, tree_problem())


@pytest.mark.usefixtures("x64")
def test_default_center_is_the_initial_mean():
    path, mean = LogWeightedShrinkage(0.6, 0.4), jnp.array([-0.4, 0.2, 1.1])
    assert_equation_5(path, 0.6, 0.4, mean, Problem.of(bumpy, pgps.Normal(mean, 1.3)))


@over("path", ANY_PATH)
@over("make_problem", PROBLEMS)
@pytest.mark.usefixtures("x64")
def test_path_starts_at_the_initial_law_and_ends_at_the_target(path: AbstractPath, make_problem: Callable[[], Problem]):
    problem = make_problem()
    particles = some_particles(problem)
    value = path_values(member, as_arrays(path), jnp.array(TIMES), particles, problem)
    start, end = ends(problem, particles)
    assert_close((value.logdensity[0], value.score[0]), start, 1e-12)
    assert_close((value.logdensity[-1], value.score[-1]), end, 1e-12)


@over("path", ANY_PATH)
def test_ends_of_a_path_from_a_box(path: AbstractPath):
    problem = box_problem()
    # The last two lie outside the box, where the initial law is absent at t = 1 only.
    particles = jnp.array([[0.5, 0.5], [-0.9, 0.8], [3.0, 0.2], [-4.0, 5.0]])
    population = populations(as_arrays(path), jnp.array(TIMES), particles, problem)
    assert {leaf.dtype for leaf in jax.tree.leaves(population)} == {jnp.dtype("float32")}
    start, end = ends(problem, particles)
    assert_close((population.logdensity[0], population.score[0]), start, 1e-6)
    assert_close((population.logdensity[-1], population.score[-1]), end, 1e-6)
    np.testing.assert_array_equal(population.alive[0], [True, True, False, False])
    assert np.all(population.alive[-1])
    assert not np.any(population.faulty)


def log_gamma(x: Array) -> Array:
    """No mass below 0, where autodiff's slope is nan rather than 0."""
    return jnp.where(jnp.all(x > 0), jnp.sum(jnp.log(x) + jnp.sqrt(x) - 2 * x), -jnp.inf)


@over("path", ANY_PATH)
def test_path_starts_at_the_initial_law_also_outside_the_targets_support(path: AbstractPath):
    problem = vector_problem(log_gamma)
    outside = jnp.array([[-1.0, -2.0, 0.5], [-2.0, 1.0, -9.0]])
    start, (log_target, _) = ends(problem, outside)
    assert np.all(log_target == -np.inf)
    assert np.all(np.any(np.isnan(jax.vmap(jax.grad(log_gamma))(outside)), axis=1))
    population = populations(as_arrays(path), jnp.array(TIMES), outside, problem)
    assert_close((population.logdensity[0], population.score[0]), start, 1e-6)
    assert np.all(population.alive[0])
    # A path that sets out with slope 0 has 0 * -inf as its time derivative at t = 0, and only there.
    assert not np.any(population.faulty[1:])


@over("path", ANY_PATH)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((lambda: vector_problem(log_gamma), [[-2.0, 1.0, -9.0], [3.0, 3.0, 3.0]]), id="target"),
        pytest.param((lambda: box_problem(log_gamma), [[-9.0, 9.0], [0.5, 0.5]]), id="both"),
    ],
)
def test_outside_the_support_there_is_no_mass_and_no_slope(
    path: AbstractPath, case: tuple[Callable[[], Problem], list[list[float]]]
):
    make_problem, particles = case
    # The second particle is inside, and must not notice the first.
    population = populations(as_arrays(path), jnp.array(TIMES), jnp.array(particles), make_problem())
    between = jax.tree.map(lambda leaf: leaf[1:-1], population)
    assert np.all(between.logdensity[:, 0] == -np.inf)
    np.testing.assert_array_equal(between.score[:, 0], 0.0)
    np.testing.assert_array_equal(between.alive, [[False, True], [False, True]])
    assert not np.any(between.faulty)
    assert np.all(np.isfinite(between.score[:, 1]))
    assert np.all(np.isfinite(between.time_derivative[:, 1]))


@over("path", PATHS)
@pytest.mark.usefixtures("x64")
def test_closed_forms_agree_with_the_default(path: AbstractPath):
    problem = vector_problem()
    arguments = as_arrays(path), jnp.array(TIMES), some_particles(problem), problem
    assert_close(path_values(member, *arguments)[:3], path_values(AbstractPath.evaluate, *arguments)[:3])


@pytest.mark.usefixtures("x64")
def test_shrinking_all_particles_and_combining_the_ends_is_evaluating():
    """What serves targets that are no log-density: both ends evaluated elsewhere, put together by the path."""
    problem, path = vector_problem(), LogWeightedShrinkage(0.4, 0.3, center=-1.3)
    t, x, center = jnp.asarray(0.6), some_particles(problem), jnp.full(3, -1.3)
    x_a, x_b = path.shrink(t, x, center)
    np.testing.assert_allclose(x_a, -1.3 + (1 - 0.4 * 0.6) * (np.asarray(x) + 1.3), rtol=1e-12)
    np.testing.assert_allclose(x_b, -1.3 + (np.asarray(x) + 1.3) / (0.3 + 0.7 * 0.6), rtol=1e-12)
    (start, _), (_, end) = ends(problem, x_a), ends(problem, x_b)
    combined = jax.vmap(lambda *at: path.combine(t, *at))(x - center, start, end)
    value = path_values(member, as_arrays(path), t[None], x, problem)
    assert_close(combined[:3], tuple(part[0] for part in value[:3]))


HOST_DENSITY = HostDensity(mean=1.0, scale=0.7)


def test_a_density_on_the_host_has_no_forward_mode():
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(HOST_DENSITY, (jnp.zeros(3),), (jnp.ones(3),))


@over("path", ANY_PATH)
def test_evaluation_costs_one_reverse_gradient_per_particle(path: AbstractPath):
    problem = vector_problem(HOST_DENSITY)
    particles = some_particles(problem, 5)
    HOST_DENSITY.reset()
    value = jax.block_until_ready(compiled_evaluate(as_arrays(path), jnp.asarray(0.4), particles, problem))
    assert (HOST_DENSITY.gradients, HOST_DENSITY.values) == (5, 0)
    known = vector_problem(gaussian)
    assert_close(value, compiled_evaluate(as_arrays(path), jnp.asarray(0.4), particles, known), 1e-5)


@pytest.mark.usefixtures("x64")
def test_retiming_is_a_fresh_evaluation():
    problem = vector_problem(half_space)
    early, late = (path_population(problem, t, Geometric()) for t in (0.0, 0.7))
    assert 0 < np.sum(~np.asarray(late.alive)) < 16
    assert_close(Geometric().retime(jnp.asarray(0.7), early), late)
    assert_close(Geometric().retime(jnp.asarray(0.0), late), early)
    assert LogWeightedShrinkage(0.3, 0.6).retime(jnp.asarray(0.7), early) is None


def half_space(x: Array) -> Array:
    """A density with an edge that some particles are beyond."""
    return jnp.where(x[0] > -0.5, -0.5 * jnp.sum(x**2), -jnp.inf)


def gaussian(x: Array) -> Array:
    """The same as HOST_DENSITY."""
    return -0.5 * jnp.sum(((x - 1.0) / 0.7) ** 2)


def test_a_users_path_is_sampled():
    step_size, scale, num_particles = 0.02, 0.5, 2000
    method = pgps.methods.PGPS(
        path=Bridge(),
        field=pgps.fields.Zero(),
        trainer=pgps.trainers.NoTraining(),
        stepper=pgps.steppers.Fixed(0.1),
        adjustment=pgps.adjustments.Langevin(step_size, 5, final_steps=150),
    )
    result = pgps.sample(
        lambda x: -0.5 * jnp.sum(((x - 3.0) / scale) ** 2),
        pgps.Normal(0.0, 1.0, shape=(2,)),
        key=jax.random.key(1),
        num_particles=num_particles,
        method=method,
    )
    assert result.status == pgps.Status.COMPLETED
    # The last 150 steps forget where they began but for (1 - 0.02/0.25)^150 = 4e-6 of it. The variance that
    # Langevin steps settle at is known, and with it the standard errors, of which four are allowed.
    variance = scale**2 / (1 - step_size / (2 * scale**2))
    particles = np.asarray(result.particles)
    np.testing.assert_allclose(particles.mean(axis=0), 3.0, atol=4 * np.sqrt(variance / num_particles))
    np.testing.assert_allclose(particles.var(axis=0), variance, rtol=4 * np.sqrt(2 / num_particles))


@pytest.mark.parametrize("logdensity", [-3.0, -np.inf, np.inf, np.nan])
def test_a_term_of_weight_zero_is_absent(logdensity: float):
    assert temper(jnp.asarray(0.0), jnp.asarray(logdensity)) == 0.0


@pytest.mark.usefixtures("x64")
def test_temper_is_a_product_elsewhere():
    weight, logdensity = jnp.asarray(0.3), jnp.asarray(-2.0)
    assert_close(temper(weight, logdensity), jnp.asarray(-0.6))
    assert_close(jax.grad(temper, argnums=(0, 1))(weight, logdensity), (logdensity, weight))
    assert temper(weight, jnp.asarray(-jnp.inf)) == -jnp.inf


@pytest.mark.parametrize("alpha", [-0.1, 1.1, np.nan, np.inf, "big"])
def test_bad_alpha(alpha: float):
    with pytest.raises((ValueError, TypeError), match=r"alpha must .*; ") as error:
        LogWeightedShrinkage(alpha, 1.0)
    assert repr(alpha) in str(error.value)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.5, np.nan, None])
def test_bad_beta(beta: float):
    with pytest.raises((ValueError, TypeError), match=r"beta must .*; ") as error:
        LogWeightedShrinkage(0.0, beta)
    assert repr(beta) in str(error.value)


def test_a_path_needs_a_logdensity():
    with pytest.raises(TypeError, match="logdensity"):
        AbstractPath()  # pyright: ignore[reportAbstractUsage]


def gaussian_tails(x: Array) -> Array:
    return jnp.logaddexp(-0.5 * jnp.sum((x - 3) ** 2), -0.5 * jnp.sum((x + 3) ** 2))


def log_scale(x: Array) -> Array:
    """Observations 1 and -1 of standard deviation exp(x_0) and mean x_1."""
    return -2 * x[0] - 0.5 * jnp.exp(-2 * x[0]) * ((1 - x[1]) ** 2 + (1 + x[1]) ** 2)


NO_EDGE = jnp.asarray(False)


def nowhere_far_out(x: Array) -> Array:
    return jnp.where(jnp.sum(x**2) < 40, gaussian_tails(x), -jnp.inf)


@pytest.mark.parametrize(
    ("logdensity", "chosen"),
    [(gaussian_tails, (0.9, 0.3)), (log_scale, (0.0, 1.0)), (nowhere_far_out, (0.0, 1.0))],
    ids=["gaussian-tails", "exponential", "bounded"],
)
def test_the_target_is_shrunk_unless_it_explodes_far_out(logdensity: Callable, chosen: tuple[float, float]):
    problem = Problem.of(logdensity, pgps.Normal(0.0, 2.0, shape=(2,)))
    particles = problem.draw(KEY, 500)
    choice = eqx.filter_jit(CautiousShrinkage(0.9, 0.3).choose)(particles, problem, NO_EDGE)
    assert choice is not None
    path, evaluations = choice
    np.testing.assert_allclose((path.alpha, path.beta), chosen, rtol=1e-6)
    assert {name: float(value) for name, value in path.told().items()} == pytest.approx(
        dict(zip(("alpha", "beta"), chosen, strict=True))
    )
    assert (evaluations.values, evaluations.gradients) == (2, 0)


def test_nothing_is_shrunk_or_spread_where_there_is_an_edge():
    problem = Problem.of(gaussian_tails, pgps.Uniform(-2.0, 2.0, shape=(2,)))
    choice = CautiousShrinkage(0.9, 0.3).choose(problem.draw(KEY, 500), problem, ~NO_EDGE)
    assert choice is not None
    assert (float(choice[0].alpha), float(choice[0].beta)) == (0.0, 1.0)


def test_other_paths_are_as_they_are():
    problem = Problem.of(gaussian_tails, pgps.Normal(shape=(2,)))
    assert LogWeightedShrinkage(1.0, 0.3).choose(jnp.zeros((4, 2)), problem, NO_EDGE) is None
    assert LogWeightedShrinkage(1.0, 0.3).told() == {}
