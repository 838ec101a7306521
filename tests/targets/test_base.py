"""What every target keeps: its density, its draws and its log evidence agree, and its slope is finite everywhere."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxtyping import Array

from helpers import assert_close, assert_moments, over
from pgps.targets import (
    AbstractMixture,
    AbstractTarget,
    Funnel,
    GaussianMixture,
    ManyWell,
    StudentMixture,
    false_mode,
    forty_gaussians,
    funnel,
    many_well,
    mode_discovery,
    nine_gaussians,
    student_t_mixture,
    two_modes,
    weight_recovery,
)

NUM_DRAWS = 20_000


def uneven_students() -> StudentMixture:
    """Components that differ in weight and width, with light enough tails for a fourth moment."""
    weights = jnp.linspace(0.01, 0.19, 10)
    return StudentMixture(weights, student_t_mixture()[0].means, jnp.linspace(2.0, 0.5, 10), 9.0)


# A new target is one line in its registry. Targets are made when asked for: they have the test's dtype.
GAUSSIANS: dict[str, Callable[[], GaussianMixture]] = {
    "two-modes": lambda: two_modes()[0],
    "mode-discovery": lambda: mode_discovery()[0],
    "false-mode": lambda: false_mode()[0],
    "weight-recovery": lambda: weight_recovery(jax.random.key(3))[0],
    "nine-gaussians": lambda: nine_gaussians()[0],
    "forty-gaussians": lambda: forty_gaussians()[0],
    "forty-gaussians-50": lambda: forty_gaussians(50)[0],
    "uneven-gaussians": lambda: GaussianMixture(
        jnp.array([0.3, 0.7]), jnp.array([[-5.0], [4.0]]), jnp.array([0.2, 1.1])
    ),
}
STUDENTS: dict[str, Callable[[], StudentMixture]] = {
    "student-t-mixture": lambda: student_t_mixture()[0],
    "uneven-students": uneven_students,
}
MIXTURES: dict[str, Callable[[], AbstractMixture]] = {**GAUSSIANS, **STUDENTS}
TARGETS: dict[str, Callable[[], AbstractTarget]] = {
    **MIXTURES,
    "funnel": lambda: funnel()[0],
    "many-well": lambda: many_well()[0],
}
# One or two dimensions. A funnel's neck is too narrow for a grid: SciPy's normal laws check its density.
ON_A_GRID = {
    **{name: make for name, make in MIXTURES.items() if name not in ("weight-recovery", "forty-gaussians-50")},
    "one-well": lambda: ManyWell(1),
}
# One of each class whose parameters are arrays.
STACKABLE = {name: TARGETS[name] for name in ("uneven-gaussians", "uneven-students", "funnel")}


class Draws(NamedTuple):
    x: np.ndarray
    values: np.ndarray
    scores: np.ndarray


# Programs are shared by all targets of one class and shape.
@eqx.filter_jit
def draw(target: AbstractTarget, key: Array) -> Array:
    return target.sample(key, NUM_DRAWS)


@eqx.filter_jit
def value_and_score(target: AbstractTarget, x: Array) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(target))(x)


@functools.cache
def draws_of(make: Callable[[], AbstractTarget]) -> Draws:
    target = make()
    x = draw(target, jax.random.key(1))
    return Draws(*map(np.asarray, (x, *value_and_score(target, x))))


@eqx.filter_jit
def log_integral(target: AbstractTarget) -> Array:
    """Trapezoids in u, x = sinh(u), out to |x| = 4e3, where t components with 2 degrees of freedom have 1e-7 left."""
    u, step = jnp.linspace(-9.0, 9.0, 901, retstep=True)
    x, weights = jnp.sinh(u), jnp.cosh(u) * step

    def along_the_last(others: Array) -> Array:
        return weights @ jax.vmap(lambda last: jnp.exp(target(jnp.append(others, last))))(x)

    if target.dim == 1:
        return jnp.log(along_the_last(jnp.zeros(0)))
    return jnp.log(weights @ jax.lax.map(along_the_last, x[:, None]))


@eqx.filter_jit
def modes_of(mixture: AbstractMixture, x: Array) -> tuple[Array, Array, Array]:
    """For each draw: posterior weights w d ln p / dw, slopes d ln p / ds by the scales, and the nearest mode."""
    gradients = jax.vmap(jax.grad(lambda mixture, x: mixture(x)), (None, 0))(mixture, x)
    return mixture.weights * gradients.weights, gradients.scales, mixture.nearest_mode(x)


def assert_mean(values: np.ndarray, mean: float) -> None:
    """The mean of independent values (first axis) lies within four of its standard errors of the truth."""
    error = values.std(axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - mean), 4 * error)


def parts(mixture: AbstractMixture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.asarray(mixture.weights, float), np.asarray(mixture.means, float), np.asarray(mixture.scales, float)


@over("make", TARGETS)
def test_shapes_in_single_precision(make: Callable[[], AbstractTarget]):
    target, draws = make(), draws_of(make)
    assert (draws.x.shape, draws.x.dtype) == ((NUM_DRAWS, target.dim), np.float32)
    assert (draws.values.shape, draws.values.dtype) == ((NUM_DRAWS,), np.float32)


@over("make", {**STACKABLE, "many-well": TARGETS["many-well"]})
@pytest.mark.usefixtures("x64")
def test_shapes_in_double_precision(make: Callable[[], AbstractTarget]):
    target = make()
    x = eqx.filter_eval_shape(lambda target: target.sample(jax.random.key(0), 3), target)
    value = eqx.filter_eval_shape(target, jnp.zeros(target.dim))
    assert (x.shape, x.dtype) == ((3, target.dim), jnp.float64)
    assert (value.shape, value.dtype) == ((), jnp.float64)


@over("make", ON_A_GRID)
@pytest.mark.usefixtures("x64")
def test_the_density_integrates_to_the_evidence(make: Callable[[], AbstractTarget]):
    target = make()
    assert float(log_integral(target)) == pytest.approx(target.log_evidence, abs=1e-6)


def inner_law(target: AbstractTarget) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of a Gaussian that is narrower than the target around a point of high density."""
    match target:
        case AbstractMixture():
            weights, means, scales = parts(target)
            heaviest = np.argmax(weights)
            return means[heaviest], np.full(target.dim, 0.97 * scales[heaviest])
        case Funnel():
            return np.zeros(target.dim), np.array([0.2] + (target.dim - 1) * [0.9])
        case ManyWell():
            return np.tile([1.75, 0.0], target.num_wells), np.tile([0.18, 0.9], target.num_wells)
    raise NotImplementedError(target)


@over("make", TARGETS)
def test_the_draws_have_the_density_and_the_evidence(make: Callable[[], AbstractTarget]):
    # For every normalised density q that vanishes where the target does, E_p[q(x) Z / exp(log-density)] = 1.
    target, draws = make(), draws_of(make)
    log_inner = scipy.stats.norm.logpdf(draws.x, *inner_law(target)).sum(axis=1)
    ratios = np.exp(log_inner + target.log_evidence - draws.values)
    assert ratios.std() / np.sqrt(NUM_DRAWS) < 0.06
    assert_mean(ratios, 1.0)


@over("make", TARGETS)
def test_the_mean_score_is_zero(make: Callable[[], AbstractTarget]):
    assert_mean(draws_of(make).scores.astype(float), 0.0)


@over("make", {**GAUSSIANS, "uneven-students": STUDENTS["uneven-students"]})
def test_moments(make: Callable[[], AbstractMixture]):
    mixture = make()
    weights, means, scales = parts(mixture)
    # The variance of a t coordinate is scale^2 df / (df - 2).
    df = float(mixture.df) if isinstance(mixture, StudentMixture) else np.inf
    variances = scales[:, None] ** 2 / (1 - 2 / df)
    mean = weights @ means
    assert_moments(draws_of(make).x, mean, weights @ (means**2 + variances) - mean**2)


@over("make", MIXTURES)
def test_mode_masses_and_widths(make: Callable[[], AbstractMixture]):
    mixture = make()
    weights, means, scales = parts(mixture)
    posterior, slopes, nearest = map(np.asarray, modes_of(mixture, jnp.asarray(draws_of(make).x)))
    error = 4 * np.sqrt(weights * (1 - weights) / NUM_DRAWS)
    # The mean posterior weight is w, also where components overlap; a normalised density's mean slope by s is 0.
    np.testing.assert_array_less(np.abs(posterior.mean(axis=0) - weights), error)
    assert_mean(slopes.astype(float), 0.0)
    # Where half the gap between modes is 4 widths or more, less than 4e-5 of a Gaussian is nearest to another's mean.
    gaps = np.linalg.norm(means[:, None] - means, axis=-1) + 1e9 * np.eye(len(weights))
    if isinstance(mixture, GaussianMixture) and np.all(gaps / 2 >= 4 * scales[:, None]):
        shares = np.bincount(nearest, minlength=len(weights)) / NUM_DRAWS
        np.testing.assert_array_less(np.abs(shares - weights), error + 4e-5)


@over("make", TARGETS)
def test_values_and_slopes_are_finite_far_away_and_at_the_modes(make: Callable[[], AbstractTarget]):
    target = make()
    axes = 1e4 * np.concatenate([np.eye(target.dim), np.full((1, target.dim), target.dim**-0.5)])
    far = np.concatenate([axes, -axes])
    modes = target.means if isinstance(target, AbstractMixture) else np.zeros((1, target.dim))
    # Repeated, to use the program that has evaluated the draws.
    points = np.resize(np.concatenate([far, modes]), (NUM_DRAWS, target.dim))
    values, scores = value_and_score(target, jnp.asarray(points, jnp.float32))
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(scores))
    # Far away they point back.
    assert np.all(np.sum(far * np.asarray(scores[: len(far)], float), axis=1) < 0)


@over("make", STACKABLE)
def test_targets_stack(make: Callable[[], AbstractTarget]):
    def facts(target: AbstractTarget) -> tuple:
        draws = target.sample(jax.random.key(0), NUM_DRAWS)
        return *value_and_score(target, x), jnp.mean(draws, axis=0), target.log_evidence, target.dim

    first = make()
    second = jax.tree.map(lambda leaf: leaf[::-1] if leaf.ndim == 1 else 1.1 * leaf, first)
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second)
    x = jnp.linspace(-1.0, 2.0, 3 * first.dim).reshape(3, first.dim)
    values, scores, means, log_evidence, dim = jax.jit(jax.vmap(facts))(stack)
    for i, target in enumerate([first, second]):
        assert_close((values[i], scores[i]), value_and_score(target, x), 1e-4)
    assert_close(means[0], jnp.asarray(draw(first, jax.random.key(0)).mean(axis=0)), 1e-3)
    assert not np.allclose(means[0], means[1], atol=1e-3)
    assert log_evidence.tolist() == [0.0, 0.0]
    assert dim.tolist() == [first.dim, first.dim]


def test_new_numbers_need_no_compilation():
    num_traces = 0

    @eqx.filter_jit
    def value(target: AbstractTarget, x: Array) -> Array:
        nonlocal num_traces
        num_traces += 1
        return target(x)

    for name in ("mode-discovery", "false-mode", "uneven-gaussians"):
        value(TARGETS[name](), jnp.zeros(1))
    assert num_traces == 1
    for name in STUDENTS:
        value(TARGETS[name](), jnp.zeros(2))
    assert num_traces == 2
    for scale in (3, 2.0):
        value(Funnel(10, scale), jnp.zeros(10))  # pyright: ignore[reportArgumentType]
    assert num_traces == 3


def test_heavy_tails():
    # |z|^2 / dim follows the F distribution with (dim, df) degrees of freedom.
    mixture = StudentMixture(jnp.full(10, 0.1), jnp.full((10, 2), 3.0), jnp.full(10, 0.5), 2.0)
    z = (np.asarray(draw(mixture, jax.random.key(3)), float) - 3) / 0.5
    assert scipy.stats.kstest(np.sum(z**2, axis=1) / 2, scipy.stats.f(2, 2).cdf).pvalue > 1e-3
