"""The log-Gaussian Cox process: its density is SciPy's, and the pines' log evidence is the published one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats

from helpers import assert_close, needs_files, normal_array
from pgps.targets import LogGaussianCox, cox, log_gaussian_cox

COUNTS = np.array([[0, 2, 1], [3, 0, 0], [1, 1, 5]])


def some_target() -> LogGaussianCox:
    return LogGaussianCox(COUNTS, 1.2, 0.8, 0.3)


def test_count():
    points = np.array([[0.1, 0.9], [0.4, 0.0], [1.0, 1.0], [0.5, 0.2], [0.0, 0.6]])
    assert cox.count(points, 2).tolist() == [[1, 2], [1, 1]]
    np.testing.assert_allclose(cox.stretch(points * [3, 0.5] + 7), points)


@pytest.mark.usefixtures("x64")
def test_the_field_has_the_covariance():
    target = some_target()
    centers = np.array([(i, j) for i in range(3) for j in range(3)])
    distances = np.linalg.norm(centers[:, None] - centers, axis=-1)
    covariance = 0.8 * np.exp(-distances / (3 * 0.3))
    factor = jax.jacobian(target.log_intensity)(jnp.zeros(9))
    assert_close(factor @ factor.T, jnp.asarray(covariance))
    assert_close(target.log_intensity(jnp.zeros(9)), jnp.full(9, 1.2))


@pytest.mark.usefixtures("x64")
def test_logdensity():
    target = some_target()
    x = np.asarray(normal_array(5, 9))
    field = 1.2 + x @ np.asarray(target.cholesky).T
    # Poisson counts in cells of area 1/9, without the terms that no parameter is in.
    poisson = scipy.stats.poisson.logpmf(COUNTS.ravel(), np.exp(field) / 9).sum(axis=1)
    constant = scipy.special.gammaln(COUNTS + 1).sum() + COUNTS.sum() * np.log(9)
    expected = scipy.stats.norm.logpdf(x).sum(axis=1) + poisson + constant
    assert_close(jax.vmap(target)(jnp.asarray(x)), jnp.asarray(expected))


@pytest.mark.usefixtures("x64")
def test_gradient():
    target, x, step = some_target(), normal_array(9, seed=2), 1e-5
    differences = [(target(x + step * e) - target(x - step * e)) / (2 * step) for e in jnp.eye(9)]
    assert_close(jax.grad(target)(x), jnp.stack(differences), 1e-8)


@pytest.mark.usefixtures("x64")
def test_one_cell_by_quadrature():
    # p(y) of one Poisson count whose log-rate is normal.
    target = LogGaussianCox(np.array([[4]]), 1.2, 0.8, 0.3)
    density = jax.jit(lambda x: jnp.exp(target(x[None])))
    found, _ = scipy.integrate.quad(lambda x: float(density(jnp.asarray(x))), -10, 10)
    rates = scipy.stats.lognorm(np.sqrt(0.8), scale=np.exp(1.2)).expect(lambda rate: rate**4 * np.exp(-rate))
    assert found == pytest.approx(rates, rel=1e-6)


def test_values_and_slopes_are_finite_far_away():
    target = some_target()
    axes = np.concatenate([size * sign * np.eye(9) for size in (30, 100, 1e4) for sign in (1, -1)])
    values, slopes = jax.vmap(jax.value_and_grad(target))(jnp.asarray(axes, jnp.float32))
    assert values.dtype == jnp.float32
    assert np.all(np.isfinite(values))
    assert np.all(np.sum(axes * np.asarray(slopes, float), axis=1) < 0)


@pytest.mark.usefixtures("x64")
def test_the_tangent_of_exp():
    f = jnp.array([-5.0, 59.9, 60.0, 61.0, 70.0])
    expected = np.exp([-5.0, 59.9, 60.0, 60.0, 60.0]) * np.array([1.0, 1.0, 1.0, 2.0, 11.0])
    np.testing.assert_allclose(cox._intensity(f), expected)
    slopes = jax.vmap(jax.grad(lambda f: cox._intensity(f)))(f)
    np.testing.assert_allclose(slopes, np.exp([-5.0, 59.9, 60.0, 60.0, 60.0]))


@pytest.mark.parametrize(
    ("counts", "variance", "length", "message"),
    [
        (np.ones((2, 3)), 1.0, 0.1, r"counts must have shape \(grid, grid\), got \(2, 3\); count on a square grid"),
        (np.ones(4), 1.0, 0.1, r"got \(4,\)"),
        (np.full((2, 2), 0.5), 1.0, 0.1, "counts must be whole and not negative, got .*; count points"),
        (np.full((2, 2), -1), 1.0, 0.1, "counts must be whole and not negative"),
        (COUNTS, 0.0, 0.1, "variance must be positive"),
        (COUNTS, 1.0, -0.1, "length must be positive"),
    ],
)
def test_misuse(counts: np.ndarray, variance: float, length: float, message: str):
    with pytest.raises(ValueError, match=message):
        LogGaussianCox(counts, 0.0, variance, length)


def test_a_grid_has_cells():
    with pytest.raises(ValueError, match="grid must be at least 1"):
        log_gaussian_cox(0)


@needs_files
def test_the_problem():
    target, initial = log_gaussian_cox()
    assert (target.dim, target.reference_log_evidence) == (1600, 506.90)
    assert float(target.mean) == pytest.approx(np.log(126) - 1.91 / 2)
    assert_close((initial.loc, initial.scale), (jnp.zeros(1600), jnp.ones(1600)))
    grid = np.asarray(target.counts).reshape(40, 40)
    assert grid.sum() == 126
    # The outermost saplings are in the outermost cells.
    assert min(grid[0].sum(), grid[-1].sum(), grid[:, 0].sum(), grid[:, -1].sum()) >= 1
    small, initial = log_gaussian_cox(5)
    assert (small.dim, initial.loc.shape, small.reference_log_evidence) == (25, (25,), None)
    assert float(small.counts.sum()) == 126


@needs_files
@pytest.mark.usefixtures("x64")
def test_the_pines_by_laplace():
    # At the mode 516.354, 9 above the log evidence: most cells are empty, and there the posterior is skewed.
    target, _ = log_gaussian_cox()
    value_and_grad = jax.jit(jax.value_and_grad(lambda x: -target(x)))
    found = scipy.optimize.minimize(
        lambda x: tuple(np.asarray(part) for part in value_and_grad(x)),
        np.zeros(target.dim),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-6},
    )
    assert np.abs(found.jac).max() < 1e-3
    factor, log_intensity = np.asarray(target.cholesky), np.asarray(target.log_intensity(jnp.asarray(found.x)))
    curvature = (factor.T * np.exp(log_intensity) / target.dim) @ factor + np.eye(target.dim)
    log_det = 2 * np.log(np.diagonal(np.linalg.cholesky(curvature))).sum()
    laplace = -found.fun + 0.5 * (target.dim * np.log(2 * np.pi) - log_det)
    assert laplace == pytest.approx(516.354, abs=1e-3)
