"""Distances between samples: brute force, closed forms of normal laws, SciPy, and no bias."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxtyping import Array

from pgps.metrics import distances, mmd_squared, pairs, wasserstein_1, wasserstein_2


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_wasserstein_1_is_scipys():
    x, y, v, w = normal(7, 1), 2 + normal(11, 1, seed=1), normal(7, seed=2), normal(11, seed=3)
    expected = scipy.stats.wasserstein_distance(x[:, 0], y[:, 0], np.exp(v), np.exp(w))
    assert wasserstein_1(x, y, v, w) == pytest.approx(expected, rel=1e-12)
    assert wasserstein_1(x, y) == pytest.approx(scipy.stats.wasserstein_distance(x[:, 0], y[:, 0]), rel=1e-12)


def test_wasserstein_on_a_line_by_hand():
    # Half of the mass stays at 0, a quarter goes from 1 to 0 and a quarter from 1 to 3.
    x, y, y_log_weights = np.array([[1.0], [0.0]]), np.array([[3.0], [0.0]]), np.log([1.0, 3.0])
    assert wasserstein_1(x, y, None, y_log_weights) == pytest.approx(0.25 * 1 + 0.25 * 2)
    assert wasserstein_2(x, y, None, y_log_weights) == pytest.approx(np.sqrt(0.25 * 1 + 0.25 * 4))


def test_wasserstein_2_on_a_line_is_the_linear_programme():
    x, y, v, w = normal(9, 1), 1 + 2 * normal(7, 1, seed=1), normal(9, seed=2), normal(7, seed=3)
    in_the_plane = lambda points: np.pad(points, ((0, 0), (0, 1)))  # noqa: E731
    for weights in ((v, w), (None, None), (v, None)):
        flat = wasserstein_2(in_the_plane(x), in_the_plane(y), *weights)
        assert wasserstein_2(x, y, *weights) == pytest.approx(flat, rel=1e-9)


def best_matching(x: np.ndarray, y: np.ndarray) -> float:
    """W2 of two equally weighted samples by trying all matchings."""
    costs = [np.mean(np.sum((x - y[list(order)]) ** 2, axis=1)) for order in itertools.permutations(range(len(y)))]
    return float(np.sqrt(min(costs)))


def test_wasserstein_2_by_brute_force():
    x, y = normal(6, 3), normal(6, 3, seed=1)
    expected = best_matching(x, y)
    assert wasserstein_2(x, y) == pytest.approx(expected, rel=1e-12)
    # Rows one to three stand for their copies, which make it a linear programme.
    copies = np.array([3, 1, 2])
    expected = best_matching(np.repeat(x[:3], copies, axis=0), y)
    assert wasserstein_2(x[:3], y, np.log(copies)) == pytest.approx(expected, rel=1e-9)
    assert wasserstein_2(y, x[:3], None, np.log(copies)) == pytest.approx(expected, rel=1e-9)
    expected = best_matching(np.repeat(x[:3], copies, axis=0), np.repeat(y[:3], 2, axis=0))
    assert wasserstein_2(x[:3], y[:3], np.log(copies)) == pytest.approx(expected, rel=1e-9)


def test_assignment_and_linear_programme_agree():
    x, y = 1e3 * normal(20, 2), 1e3 * normal(20, 2, seed=1)
    costs = np.sum((x[:, None] - y) ** 2, axis=-1)
    equal = np.full(20, 1 / 20)
    assert distances._transport_cost(costs, equal, equal) == pytest.approx(distances._assignment_cost(costs), rel=1e-9)


def test_distance_of_a_shifted_sample():
    # A translation is its own best coupling.
    for dim in (1, 3):
        x, log_weights, shift = normal(12, dim), normal(12, seed=1), np.arange(1, dim + 1)
        for weights in (None, log_weights):
            assert wasserstein_2(x, x + shift, weights, weights) == pytest.approx(np.linalg.norm(shift), rel=1e-9)
            assert wasserstein_2(x, x, weights, weights) == pytest.approx(0, abs=1e-7)
    assert wasserstein_1(x[:, :1], x[:, :1] - 2, log_weights, log_weights) == pytest.approx(2, rel=1e-12)


def test_wasserstein_of_normal_laws():
    # Quantiles of N(0, 1) and N(1, 2^2): W2^2 = (1 - 0)^2 + (2 - 1)^2; 4,001 of them leave an error below 1 percent.
    quantiles = scipy.stats.norm.ppf((np.arange(4001) + 0.5) / 4001)[:, None]
    assert wasserstein_2(quantiles, 1 + 2 * quantiles) == pytest.approx(np.sqrt(2), rel=1e-2)
    # W1 = E |1 + z|, a folded normal's mean.
    expected = scipy.stats.foldnorm.mean(1.0)
    assert wasserstein_1(quantiles, 1 + 2 * quantiles) == pytest.approx(expected, rel=1e-2)


def test_one_particle_each():
    x, y = np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]])
    assert wasserstein_2(x, y) == pytest.approx(5)
    assert wasserstein_2(x, np.concatenate([y, y])) == pytest.approx(5)
    assert wasserstein_2(x, np.zeros((3, 2))) == 0
    assert wasserstein_1(x[:, :1], y[:, :1]) == pytest.approx(3)


def test_too_many_particles_for_wasserstein_2():
    x = np.zeros((2000, 2))
    with pytest.raises(ValueError, match="at most 1,000,000 pairs here, got 2,000 times 1,999 particles; resample"):
        wasserstein_2(x, x[:1999])
    x = np.zeros((6000, 2))
    with pytest.raises(ValueError, match="at most 25,000,000 pairs here, got 6,000 times 6,000 particles; resample"):
        wasserstein_2(x, x)


def test_wasserstein_1_is_for_one_dimension():
    with pytest.raises(ValueError, match=r"x and y must have one column, got shape \(3, 2\); use wasserstein_2"):
        wasserstein_1(np.zeros((3, 2)), np.zeros((4, 2)))


def mmd_by_loops(x: np.ndarray, y: np.ndarray, bandwidth: float, v: np.ndarray, w: np.ndarray) -> float:
    """The definition, pair by pair."""

    def k(a: np.ndarray, b: np.ndarray) -> float:
        return np.exp(-np.sum((a - b) ** 2) / (2 * bandwidth**2))

    def within(points: np.ndarray, weights: np.ndarray) -> float:
        total = mass = 0.0
        for i in range(len(points)):
            for j in range(len(points)):
                if i != j:
                    total += weights[i] * weights[j] * k(points[i], points[j])
                    mass += weights[i] * weights[j]
        return total / mass

    across = sum(v[i] * w[j] * k(x[i], y[j]) for i in range(len(x)) for j in range(len(y)))
    return within(x, v) + within(y, w) - 2 * across / v.sum() / w.sum()


@pytest.mark.usefixtures("x64")
def test_mmd_by_brute_force():
    x, y, v, w = normal(5, 3), 0.5 + normal(7, 3, seed=1), normal(5, seed=2), normal(7, seed=3)
    expected = mmd_by_loops(x, y, 1.7, np.ones(5), np.ones(7))
    assert mmd_squared(x, y, 1.7) == pytest.approx(expected, rel=1e-12)
    expected = mmd_by_loops(x, y, 1.7, np.exp(v), np.exp(w))
    assert mmd_squared(x, y, 1.7, v, w) == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("x64")
def test_mmds_bandwidth_is_the_median_distance():
    x, y = normal(3, 2), 1 + normal(3, 2, seed=1)
    pooled = np.concatenate([x, y])
    gaps = [np.linalg.norm(a - b) for a, b in itertools.combinations(pooled, 2)]
    assert mmd_squared(x, y) == pytest.approx(mmd_squared(x, y, float(np.median(gaps))), rel=1e-12)


@pytest.mark.usefixtures("x64")
def test_each_sample_has_half_of_the_pooled_weight():
    # By halves, the distances 3, 8 and 11 have the masses 1, 2 and 2; by numbers, 3 had most of the mass.
    x, y = np.array([[0.0], [0.0]]), np.array([[8.0], [11.0]] * 50)
    assert mmd_squared(x, y) == pytest.approx(mmd_squared(x, y, 8.0), rel=1e-12)


def test_median_distance_by_hand():
    line, equal = np.array([[0.0], [1.0], [4.0]]), np.full(3, 1 / 3)
    assert pairs.median_distance(line, equal) == 3  # of 1, 3, 4
    assert (
        pairs.median_distance(np.array([[1.0], [10.0], [0.0], [4.0]]), np.full(4, 1 / 4)) == 4
    )  # the lower of 4 and 6
    assert pairs.median_distance(line, np.array([0.45, 0.45, 0.1])) == 1  # masses 20, 4.5 and 4.5
    assert pairs.median_distance(np.repeat(line, 4, axis=0), np.full(12, 1 / 12)) == 3  # copies do not count
    assert pairs.median_distance(line, np.array([0.5, 0.0, 0.5])) == 4
    assert pairs.median_distance(np.ones((5, 2)), np.full(5, 0.2)) == 1
    assert pairs.median_distance(np.ones((1, 2)), np.ones(1)) == 1


def test_median_distance_of_many_points():
    # |a - b| of normal numbers is sqrt(2) |z|. The median over n points has a relative standard error of
    # 0.75 / sqrt(n), known from repeats; for 1,000 that are drawn of 5,000 this is 2.6 percent.
    points, expected = normal(5000, 1), np.sqrt(2) * scipy.stats.norm.ppf(0.75)
    assert pairs.median_distance(points, np.full(5000, 1 / 5000)) == pytest.approx(expected, rel=4 * 0.026)
    # Only the left half has weight.
    halves = np.concatenate([points, 100 + points])
    weights = np.repeat([1 / 5000, 0.0], 5000)
    assert pairs.median_distance(halves, weights) == pytest.approx(expected, rel=4 * 0.026)


def repeated_mmd(scale: float, shift: float, log_weights: np.ndarray | None) -> np.ndarray:
    """MMD^2 with bandwidth 0.8 of 6 numbers of N(0, 1) and 5 of N(shift, scale^2), 500 times."""
    rng = np.random.default_rng(0)
    samples = [(rng.normal(size=(6, 1)), rng.normal(shift, scale, (5, 1))) for _ in range(500)]
    return np.array([mmd_squared(x, y, 0.8, log_weights) for x, y in samples])


def mean_kernel(mean: float, variance: float, bandwidth: float = 0.8) -> float:
    """E exp(-d^2 / (2 bandwidth^2)) for d of N(mean, variance)."""
    total = bandwidth**2 + variance
    return bandwidth / np.sqrt(total) * np.exp(-(mean**2) / (2 * total))


@pytest.mark.parametrize("log_weights", [None, np.array([0.0, 1.0, -1.0, 0.5, 2.0, -np.inf])])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.5, 0.7)])
def test_mmd_has_no_bias(scale: float, shift: float, log_weights: np.ndarray | None):
    truth = mean_kernel(0, 2) + mean_kernel(0, 2 * scale**2) - 2 * mean_kernel(shift, 1 + scale**2)
    values = repeated_mmd(scale, shift, log_weights)
    assert truth == pytest.approx(0, abs=1e-15) or shift
    assert values.min() < 0
    assert values.mean() == pytest.approx(truth, abs=4 * values.std() / np.sqrt(len(values)))


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch):
    x, y = normal(11, 2), 1 + normal(10, 2, seed=1)
    whole = mmd_squared(x, y, 1.0)
    for entries in (1, 60, 100):
        monkeypatch.setattr(pairs, "_BLOCK_ENTRIES", entries)
        assert mmd_squared(x, y, 1.0) == pytest.approx(whole, abs=1e-6)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    # All pairs of 10,000 particles are 400 MB in single precision; one program may have a tenth of it to work with.
    compiled_rows, work = pairs._compiled_rows, []

    def analyse(kernel: Any, a: Array, b: Array, weights: Array, *static: Any) -> Array:
        program = jax.jit(lambda a, b, weights: compiled_rows(kernel, a, b, weights, *static))
        memory = program.lower(a, b, weights).compile().memory_analysis()
        assert memory is not None
        work.append(memory.temp_size_in_bytes)
        return jnp.zeros(len(a))

    monkeypatch.setattr(pairs, "_compiled_rows", analyse)
    mmd_squared(np.zeros((10_000, 2)), np.zeros((9_999, 2)), 1.0)
    assert len(work) == 3
    assert max(work) < 40e6


def test_mmd_far_from_the_origin():
    # In single precision a distance of 1 is lost at 1e8.
    x, y = normal(8, 2), 1 + normal(8, 2, seed=1)
    assert mmd_squared(1e8 + x, 1e8 + y, 1.0) == pytest.approx(mmd_squared(x, y, 1.0), abs=1e-6)


def test_mmd_of_points():
    # Two samples at one point each: k within is 1 and across is exp(-1 / 2) at the median distance.
    x, y = np.zeros((3, 2)), np.full((4, 2), 5.0)
    assert mmd_squared(x, y) == pytest.approx(2 - 2 * np.exp(-0.5), rel=1e-6)
    assert mmd_squared(x, x) == pytest.approx(0, abs=1e-6)


def test_bad_mmd():
    x = normal(4, 2)
    for bandwidth in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match=r"bandwidth must be (positive|finite), got"):
            mmd_squared(x, x, bandwidth)
    with pytest.raises(ValueError, match="x must have at least two particles of positive weight, got one; pass"):
        mmd_squared(x[:1], x)
    with pytest.raises(ValueError, match="y must have at least two particles of positive weight, got one; pass"):
        mmd_squared(x, x, 1.0, None, np.array([0.0, -np.inf, -np.inf, -np.inf]))
