"""Finding modes: one where there is one, all where there are more, and masses within their errors."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.metrics import Modes, find_modes, share
from pgps.targets import (
    AbstractMixture,
    AbstractTarget,
    Funnel,
    forty_gaussians,
    many_well,
    mode_discovery,
    nine_gaussians,
    two_modes,
    weight_recovery,
)

Sampler = Callable[[np.random.Generator, int], np.ndarray]


def banana(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.standard_normal((n, 2)) * [3, 1]
    return x + 0.3 * np.stack([np.zeros(n), x[:, 0] ** 2], axis=1)


def draws(target: AbstractTarget, seed: int, n: int) -> np.ndarray:
    return np.asarray(target.sample(jax.random.key(seed), n), float)


def funnel(rng: np.random.Generator, n: int) -> np.ndarray:
    return draws(Funnel(), int(rng.integers(1000)), n)


def normal(dim: int) -> Sampler:
    return lambda rng, n: rng.standard_normal((n, dim))


ONE_MODE: dict[str, Sampler] = {
    "normal-1": normal(1),
    "normal-2": normal(2),
    "normal-8": normal(8),
    "normal-30": normal(30),
    "normal-60": normal(60),
    "normal-300": normal(300),
    "correlated": lambda rng, n: rng.standard_normal((n, 4)) @ np.tril(np.full((4, 4), 5.0) - 4 * np.eye(4)),
    "banana": banana,
    "funnel": funnel,
    "student": lambda rng, n: rng.standard_t(2, (n, 2)),
    "cauchy": lambda rng, n: rng.standard_t(1, (n, 1)),
    "box-1": lambda rng, n: rng.random((n, 1)),
    "box-2": lambda rng, n: rng.random((n, 2)),
}
MIXTURES: dict[str, Callable[[], AbstractMixture]] = {
    "two": lambda: two_modes()[0],
    "discovery": lambda: mode_discovery()[0],
    "nine": lambda: nine_gaussians()[0],
    "recovery-0": lambda: weight_recovery(jax.random.key(0))[0],
    "recovery-1": lambda: weight_recovery(jax.random.key(1))[0],
}


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("sampler", ONE_MODE.values(), ids=ONE_MODE)
def test_one_mode_is_one(sampler: Sampler, n: int):
    for seed in range(3):
        modes = find_modes(sampler(np.random.default_rng(seed), n))
        assert modes.masses.tolist() == pytest.approx([1.0])
        assert modes.standard_errors.tolist() == pytest.approx([0.0], abs=1e-12)
        assert np.all(modes.labels == 0)


@pytest.mark.parametrize("make", MIXTURES.values(), ids=MIXTURES)
def test_mixtures_come_apart(make: Callable[[], AbstractMixture]):
    target = make()
    for seed in range(3):
        x = draws(target, seed, 1000)
        modes = find_modes(x)
        assert_matches(modes, target)
        np.testing.assert_allclose(modes.centers[modes.labels[0]], x[modes.labels == modes.labels[0]].mean(axis=0))


def assert_matches(modes: Modes, target: AbstractMixture, num_errors: float = 4.0) -> None:
    """One mode per component, with its mass, around its mean."""
    component = np.asarray(target.nearest_mode(jnp.asarray(modes.centers)))
    assert sorted(component) == list(range(len(target.weights)))
    truth = np.asarray(target.weights)[component]
    np.testing.assert_array_less(np.abs(modes.masses - truth), num_errors * modes.standard_errors)
    assert np.all(np.diff(modes.masses) <= 0)
    assert modes.masses.sum() == pytest.approx(1)


def test_forty_modes():
    """Means are at random: some pairs are too near to each other to be two modes of 25 or 75 particles each."""
    target = forty_gaussians(2)[0]
    for seed in range(2):
        few, many = (len(find_modes(draws(target, seed, n)).masses) for n in (1000, 3000))
        assert 24 <= few <= 40
        assert 30 <= many <= 40
    assert len(find_modes(draws(forty_gaussians(10)[0], 0, 3000)).masses) == 40


@pytest.mark.parametrize("num_wells", [1, 2])
def test_wells_come_apart(num_wells: int):
    target = many_well(num_wells)[0]
    minor = target.minor_mass
    modes = find_modes(draws(target, 0, 3000))
    left = np.sum(modes.centers[:, ::2] < 0, axis=1)
    assert len(modes.masses) == 2**num_wells
    truth = minor**left * (1 - minor) ** (num_wells - left)
    np.testing.assert_array_less(np.abs(modes.masses - truth), 4 * modes.standard_errors)


def test_weighted_particles():
    """From equal masses to those of the target, by importance weights."""
    target = weight_recovery(jax.random.key(1))[0]
    proposal = type(target)(jnp.full(4, 0.25), target.means, target.scales)
    for seed in range(3):
        x = draws(proposal, seed, 1000)
        log_weights = jax.vmap(target)(jnp.asarray(x)) - jax.vmap(proposal)(jnp.asarray(x))
        modes = find_modes(x, log_weights)
        assert_matches(modes, target)
        inside = modes.labels == 1
        assert (modes.masses[1], modes.standard_errors[1]) == pytest.approx(share(inside, log_weights))


def test_copies_are_no_modes():
    """Resampling leaves many copies of few particles."""
    rng = np.random.default_rng(0)
    for dim in (1, 2, 8):
        x = rng.standard_normal((300, dim))
        weights = rng.exponential(size=300) ** 2
        copies = x[rng.choice(300, 1000, p=weights / weights.sum())]
        assert len(find_modes(copies).masses) == 1
    x = draws(nine_gaussians()[0], 0, 1000)
    copies = x[rng.choice(1000, 1000)]
    assert len(find_modes(copies).masses) == 9


def test_families_widen_errors_and_match_their_formula():
    x = draws(mode_discovery()[0], 0, 400)
    # Families of four neighbours on the line: each lies in one mode.
    ancestors = np.argsort(np.argsort(x[:, 0])) // 4
    log_weights = np.random.default_rng(0).standard_normal(400)
    modes = find_modes(x, log_weights, ancestors)
    weights = np.exp(log_weights) / np.exp(log_weights).sum()
    deviations = weights * ((modes.labels == 0) - modes.masses[0])
    expected = np.sqrt(sum(np.sum(deviations[ancestors == e]) ** 2 for e in range(100)))
    assert modes.standard_errors[0] == pytest.approx(expected, rel=1e-10)
    assert modes.standard_errors[0] > find_modes(x, log_weights).standard_errors[0]


def test_errors_are_the_spread_of_masses():
    """Over 60 samples the spread of a mass is known to 1 / sqrt(120) = 9 percent."""
    target = two_modes()[0]
    masses, errors = np.array(
        [
            (modes.masses[k], modes.standard_errors[k])
            for modes in (find_modes(draws(target, seed, 200)) for seed in range(60))
            for k in [int(np.argmin(modes.centers[:, 0]))]
        ]
    ).T
    assert abs(masses.mean() - 0.5) < 4 * np.mean(errors) / np.sqrt(60)
    assert masses.std() == pytest.approx(np.mean(errors), rel=4 * 0.09)


def test_constant_and_repeated_coordinates_do_not_matter():
    x = draws(nine_gaussians()[0], 0, 500)
    expected = find_modes(x)
    constant = find_modes(np.concatenate([x, np.full((500, 2), 0.1)], axis=1))
    np.testing.assert_array_equal(constant.labels, expected.labels)
    assert len(find_modes(np.concatenate([x, x], axis=1)).masses) == 9
    assert len(find_modes(np.full((500, 3), 0.1)).masses) == 1


def test_units_and_order_do_not_matter():
    x = draws(weight_recovery(jax.random.key(0))[0], 0, 500)
    expected = find_modes(x)
    order = np.random.default_rng(0).permutation(500)
    np.testing.assert_array_equal(find_modes(x[order]).labels, expected.labels[order])
    scaled = find_modes(x * np.logspace(-3, 4, 8) + 7.0)
    np.testing.assert_array_equal(scaled.labels, expected.labels)
    np.testing.assert_array_equal(find_modes(jnp.asarray(x)).labels, expected.labels)


def test_particles_without_weight_belong_to_the_nearest_mode():
    x = draws(two_modes()[0], 0, 500)
    expected = find_modes(x)
    more = find_modes(np.concatenate([x, [[1.0, 0.0], [1.5, 0.0]]]), np.append(np.zeros(500), [-np.inf] * 2))
    np.testing.assert_array_equal(more.labels[:500], expected.labels)
    nearest = np.argmin(np.abs(expected.centers[:, 0] - [[1.0], [1.5]]), axis=1)
    np.testing.assert_array_equal(more.labels[500:], nearest)
    np.testing.assert_allclose(more.masses, expected.masses)


def test_few_particles_are_one_mode():
    for n in (1, 2, 9):
        modes = find_modes(np.arange(n, dtype=float)[:, None] ** 3)
        np.testing.assert_allclose(modes.masses, [1.0])
    lonely = np.append(np.random.default_rng(0).standard_normal(500), [50.0, 50.1])[:, None]
    assert len(find_modes(lonely).masses) == 1
    assert len(find_modes(lonely, np.append(np.full(501, -700.0), 0.0)).masses) == 1


def test_large_samples_use_a_part_and_are_fast():
    target = weight_recovery(jax.random.key(0))[0]
    x = draws(target, 0, 10_000)
    start = time.process_time()
    assert_matches(find_modes(x), target)
    # Processor time, of which others on the machine take none.
    assert time.process_time() - start < 5


def test_table_as_text():
    modes = Modes(np.array([0.75, 0.25]), np.array([0.01, 0.01]), np.zeros((2, 1)), np.zeros(3, int))
    assert str(modes).splitlines() == [
        "mode      mass     error",
        "   0    0.7500    0.0100",
        "   1    0.2500    0.0100",
    ]


@pytest.mark.parametrize("ancestors", [np.arange(4), np.zeros(5), np.zeros((5, 1), int)])
def test_bad_ancestors(ancestors: np.ndarray):
    with pytest.raises(
        ValueError, match="ancestors must be 5 whole numbers, got shape .*; pass one index per particle"
    ):
        find_modes(np.zeros((5, 1)), None, ancestors)


def test_bad_particles():
    with pytest.raises(ValueError, match=r"particles must have 2 axes, got shape \(5,\); pass"):
        find_modes(np.zeros(5))
    with pytest.raises(ValueError, match="particles must be finite, got nan or inf in 5 of 5 rows; leave"):
        find_modes(np.full((5, 1), np.nan))
    with pytest.raises(ValueError, match=r"log_weights must have shape \(5,\), got \(4,\); pass"):
        find_modes(np.zeros((5, 1)), np.zeros(4))
