"""The kernel Stein discrepancy: its definition by automatic differentiation, and 0 on average under the target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import bumpy
from pgps.metrics import kernel_stein_discrepancy, pairs, target_scores


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def definition(particles: np.ndarray, length_scale: float, offset: float) -> np.ndarray:
    """k0 for all pairs of particles of the density `bumpy`, each derivative by JAX."""

    def k(x: Array, y: Array) -> Array:
        return (offset**2 + jnp.sum((x - y) ** 2) / length_scale**2) ** -0.5

    def k0(x: Array, y: Array) -> Array:
        x_score, y_score = jax.grad(bumpy)(x), jax.grad(bumpy)(y)
        divergence = jnp.trace(jax.jacobian(jax.grad(k, argnums=1), argnums=0)(x, y))
        gradients = x_score @ jax.grad(k, argnums=1)(x, y) + y_score @ jax.grad(k, argnums=0)(x, y)
        return x_score @ y_score * k(x, y) + gradients + divergence

    points = jnp.asarray(particles)
    return np.asarray(jax.jit(jax.vmap(jax.vmap(k0, (None, 0)), (0, None)))(points, points))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("length_scale", "offset"), [(1.0, 1.0), (0.6, 1.3)])
def test_definition(length_scale: float, offset: float):
    particles, log_weights = normal(5, 3), normal(5, seed=1)
    scores, k0 = target_scores(bumpy, particles), definition(particles, length_scale, offset)
    others = ~np.eye(5, dtype=bool)
    for given in (None, log_weights):
        products = np.ones((5, 5)) if given is None else np.exp(given[:, None] + given)
        v, u = (
            kernel_stein_discrepancy(particles, scores, given, unbiased, length_scale, offset)
            for unbiased in (False, True)
        )
        assert v == pytest.approx(np.sum(products * k0) / np.sum(products), rel=1e-11)
        assert u == pytest.approx(np.sum((products * k0)[others]) / np.sum(products[others]), rel=1e-11)


@pytest.mark.usefixtures("x64")
def test_scores_are_gradients():
    particles = normal(5, 3)
    step = 1e-6 * np.eye(3)
    expected = [[(bumpy(x + h) - bumpy(x - h)) / 2e-6 for h in step] for x in jnp.asarray(particles)]
    np.testing.assert_allclose(target_scores(bumpy, particles), np.array(expected), atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_length_scale_is_the_median_distance():
    particles, log_weights = normal(6, 2), normal(6, seed=1)
    weights = np.exp(log_weights) / np.sum(np.exp(log_weights))
    for given, length_scale in (
        (None, pairs.median_distance(particles, np.full(6, 1 / 6))),
        (log_weights, pairs.median_distance(particles, weights)),
    ):
        value = kernel_stein_discrepancy(particles, -particles, given)
        assert value == kernel_stein_discrepancy(particles, -particles, given, length_scale=length_scale)


def repeated_ksd(shift: float, log_weights: np.ndarray | None) -> np.ndarray:
    """U-statistics for the standard normal target of 6 particles around `shift`, 500 times."""
    samples = shift + np.random.default_rng(0).standard_normal((500, 6, 2))
    return np.array([kernel_stein_discrepancy(x, -x, log_weights, unbiased=True, length_scale=1.5) for x in samples])


@pytest.mark.parametrize("log_weights", [None, np.array([0.0, 1.0, -1.0, 0.5, 2.0, -np.inf])])
def test_it_is_0_on_average_under_the_target(log_weights: np.ndarray | None):
    values = repeated_ksd(0.0, log_weights)
    assert values.min() < 0
    assert abs(values.mean()) < 4 * values.std() / np.sqrt(len(values))
    elsewhere = repeated_ksd(0.7, log_weights)
    assert elsewhere.mean() > 10 * elsewhere.std() / np.sqrt(len(elsewhere))


def test_importance_weights_lower_it():
    # Draws of N(0.7, 1) in place of N(0, 1), with their exact weights.
    x = 0.7 + normal(400, 1)
    log_weights = -0.7 * x[:, 0]
    unweighted, weighted = (kernel_stein_discrepancy(x, -x, w) for w in (None, log_weights))
    assert 0 < weighted < unweighted / 5


def test_v_statistic_is_not_negative_and_falls_with_n():
    few, many = normal(50, 2), normal(800, 2, seed=1)
    values = [kernel_stein_discrepancy(x, -x, length_scale=1.5) for x in (few, many)]
    # E k0(x, x) / n, up to the spread: 16 times as many particles.
    assert values[0] / values[1] == pytest.approx(16, rel=0.8)
    assert values[1] > 0


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch):
    x, log_weights = normal(11, 2), normal(11, seed=1)
    whole = [kernel_stein_discrepancy(x, -x, log_weights, unbiased) for unbiased in (False, True)]
    monkeypatch.setattr(pairs, "_BLOCK_ENTRIES", 150)
    blocks = [kernel_stein_discrepancy(x, -x, log_weights, unbiased) for unbiased in (False, True)]
    assert blocks == pytest.approx(whole, abs=1e-6)


def test_one_particle():
    # k0(x, x) = (|s|^2 + dim / (c l)^2) / c.
    x, score = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    assert kernel_stein_discrepancy(x, score) == pytest.approx(27, rel=1e-6)
    expected = (25 + 2 / (2 * 3) ** 2) / 2
    assert kernel_stein_discrepancy(x, score, length_scale=3.0, offset=2.0) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="particles must have at least two particles of positive weight, got one"):
        kernel_stein_discrepancy(x, score, unbiased=True)


def test_bad_input():
    x = normal(5, 2)
    with pytest.raises(ValueError, match=r"scores must have the shape \(5, 2\) of particles, got \(4, 2\); pass"):
        kernel_stein_discrepancy(x, x[:4])
    with pytest.raises(ValueError, match="scores must be finite, got nan or inf in 5 of 5 rows; leave"):
        kernel_stein_discrepancy(x, np.full((5, 2), np.inf))
    with pytest.raises(ValueError, match="length_scale must be positive, got 0; pass"):
        kernel_stein_discrepancy(x, x, length_scale=0)
    with pytest.raises(ValueError, match="offset must be positive, got -1; pass"):
        kernel_stein_discrepancy(x, x, offset=-1)
    with pytest.raises(TypeError, match="logdensity_fn must be a function of one particle, got 3; pass"):
        target_scores(3, x)  # pyright: ignore[reportArgumentType]
