"""Resampling schemes: what all of them guarantee, in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import over
from pgps.weights import residual, systematic
from pgps.weights.resampling import Scheme

SCHEMES: dict[str, Scheme] = {"systematic": systematic, "residual": residual}
KEY = jax.random.key(2)


def log_skewed_weights(num: int, seed: int = 0, share_of_zeros: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    log_weights = 3 * np.log(rng.exponential(size=num))
    return np.where(rng.random(num) < share_of_zeros, -np.inf, log_weights)


def normalised(log_weights: np.ndarray) -> np.ndarray:
    return np.exp(log_weights) / np.sum(np.exp(log_weights))


def counts_over_keys(scheme: Scheme, log_weights: np.ndarray, num_keys: int) -> np.ndarray:
    """How often each particle is chosen, for each key (first axis)."""
    values = jnp.asarray(log_weights, jnp.float32)
    counts = jax.jit(jax.vmap(lambda key: jnp.bincount(scheme(key, values), length=len(values))))
    return np.asarray(counts(jax.random.split(KEY, num_keys)))


@over("scheme", SCHEMES)
class TestContract:
    def test_counts_are_the_nearest_whole_numbers_and_right_on_average(self, scheme: Scheme):
        log_weights, num_keys = log_skewed_weights(50), 4000
        expected = 50 * normalised(log_weights)
        # Unnormalised log-weights do as well.
        counts = counts_over_keys(scheme, log_weights + 3.0, num_keys)
        assert np.all(counts.sum(axis=1) == 50)
        assert np.all((counts == np.floor(expected)) | (counts == np.ceil(expected)))
        # A count is floor(N W) + Bernoulli(the rest).
        rest = expected - np.floor(expected)
        error = np.sqrt(rest * (1 - rest) / num_keys)
        np.testing.assert_array_less(np.abs(counts.mean(axis=0) - expected), 4 * error + 1e-6)

    @pytest.mark.parametrize("num", [2, 7, 1000])
    def test_equal_weights_keep_every_particle(self, scheme: Scheme, num: int):
        counts = np.bincount(scheme(KEY, jnp.full(num, -3.0)), minlength=num)
        # Rounding may move one tooth over an edge between neighbours.
        assert np.sum(counts) == num
        assert np.count_nonzero(counts) >= num - 2

    def test_indices_rise_and_are_in_range(self, scheme: Scheme):
        indices = np.asarray(scheme(KEY, jnp.asarray(log_skewed_weights(1000), jnp.float32)))
        assert indices.shape == (1000,)
        assert np.all(np.diff(indices) >= 0)
        assert indices[0] >= 0
        assert indices[-1] < 1000

    @pytest.mark.parametrize("chosen", [0, 3, 9])
    def test_one_particle_with_all_the_weight(self, scheme: Scheme, chosen: int):
        log_weights = jnp.full(10, -jnp.inf).at[chosen].set(-5.0)
        np.testing.assert_array_equal(scheme(KEY, log_weights), chosen)

    def test_one_particle(self, scheme: Scheme):
        np.testing.assert_array_equal(scheme(KEY, jnp.array([-700.0])), [0])

    @pytest.mark.parametrize("last", [False, True], ids=["scattered", "also-last"])
    def test_particles_of_weight_zero_are_never_chosen(self, scheme: Scheme, last: bool):
        log_weights = log_skewed_weights(1000, seed=49, share_of_zeros=0.5)
        if last:
            log_weights[-20:] = -np.inf
        counts = counts_over_keys(scheme, log_weights, 3000)
        assert np.all(counts[:, log_weights == -np.inf] == 0)

    @pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24], ids=["first-tooth", "last-tooth"])
    def test_the_ends_of_the_comb_find_particles_with_weight(
        self, scheme: Scheme, uniform: float, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(jax.random, "uniform", lambda *_: jnp.float32(uniform))
        inside = (np.arange(1000) >= 5) & (np.arange(1000) < 995)
        for log_weights in (np.zeros(1000), log_skewed_weights(1000)):
            indices = np.asarray(scheme(KEY, jnp.asarray(np.where(inside, log_weights, -np.inf), jnp.float32)))
            assert np.all(inside[indices])

    def test_many_particles(self, scheme: Scheme):
        """Single precision cannot hold their cumulative sums exactly; zeros stay out, counts stay near."""
        log_weights = log_skewed_weights(100_000, share_of_zeros=0.3)
        counts = counts_over_keys(scheme, log_weights, 1)[0]
        assert counts.sum() == 100_000
        assert np.all(counts[log_weights == -np.inf] == 0)
        assert np.max(np.abs(counts - 1e5 * normalised(log_weights))) < 2


def test_residual_keeps_whole_copies_for_every_key():
    # N W = (2.4, 1.6, 0, 1, 0).
    counts = counts_over_keys(residual, np.log([0.48, 0.32, 1e-30, 0.2, 1e-30]), 1000)
    np.testing.assert_array_equal(np.unique(counts[:, :2], axis=0), [[2, 2], [3, 1]])
    np.testing.assert_array_equal(np.unique(counts[:, 2:], axis=0), [[0, 1, 0]])
