"""Resampling: fair, and never a particle without weight. Weights: the evidence, its error and the genealogy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import normal_array
from pgps.weights import Weights, effective_sample_size, systematic

KEY = jax.random.key(2)


def skewed_weights(num: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).exponential(size=num) ** 3
    return weights / weights.sum()


@jax.jit
def counts_over_keys(log_weights: Array, keys: Array) -> Array:
    """How often each particle is chosen, for each key (first axis)."""
    chosen = lambda key: jnp.bincount(systematic(key, log_weights), length=len(log_weights))  # noqa: E731
    return jax.vmap(chosen)(keys)


class TestSystematic:
    """One comb of N teeth."""

    def test_counts_are_the_nearest_whole_numbers_and_right_on_average(self):
        W, num_keys = skewed_weights(50), 4000
        # Unnormalised log-weights do as well.
        log_weights = jnp.asarray(np.log(W) + 3.0, jnp.float32)
        counts = np.asarray(counts_over_keys(log_weights, jax.random.split(KEY, num_keys)))
        assert np.all(counts.sum(axis=1) == 50)
        assert np.all((counts == np.floor(50 * W)) | (counts == np.ceil(50 * W)))
        # A count is floor(N W) + Bernoulli(the rest).
        rest = 50 * W - np.floor(50 * W)
        error = np.sqrt(rest * (1 - rest) / num_keys)
        np.testing.assert_array_less(np.abs(counts.mean(axis=0) - 50 * W), 4 * error + 1e-6)

    def test_equal_weights_keep_every_particle(self):
        for n in (2, 7, 1000):
            indices = systematic(KEY, jnp.full(n, -3.0))
            # Rounding may move a tooth over an edge between neighbours, never further.
            assert np.max(np.abs(np.asarray(indices) - np.arange(n))) <= 1
            assert len(set(indices.tolist())) >= n - 2

    def test_indices_rise(self):
        indices = np.asarray(systematic(KEY, jnp.asarray(np.log(skewed_weights(1000)), jnp.float32)))
        assert np.all(np.diff(indices) >= 0)

    def test_one_particle_with_all_the_weight(self):
        for i in (0, 3, 9):
            log_weights = jnp.full(10, -jnp.inf).at[i].set(-5.0)
            np.testing.assert_array_equal(systematic(KEY, log_weights), i)

    @pytest.mark.parametrize("last", [False, True], ids=["scattered", "also-last"])
    def test_particles_of_weight_zero_are_never_chosen(self, last: bool):
        W = skewed_weights(1000, seed=49)
        W[np.random.default_rng(1).random(1000) < 0.5] = 0
        if last:
            W[-20:] = 0
        with np.errstate(divide="ignore"):
            log_weights = jnp.asarray(np.log(W), jnp.float32)
        num_dead = jax.jit(jax.vmap(lambda key: jnp.sum(log_weights[systematic(key, log_weights)] == -jnp.inf)))
        assert int(jnp.sum(num_dead(jax.random.split(jax.random.key(1), 6000)))) == 0

    def test_the_first_tooth_finds_a_particle_with_weight(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jax.random, "uniform", lambda *_: jnp.float32(0))
        log_weights = jnp.where(jnp.arange(10) < 5, -jnp.inf, 0.0)
        assert np.min(np.asarray(systematic(KEY, log_weights))) == 5

    def test_the_last_tooth_finds_a_particle_with_weight(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(jax.random, "uniform", lambda *_: jnp.float32(1 - 2**-24))
        log_weights = jnp.where(jnp.arange(1000) < 995, 0.0, -jnp.inf)
        assert np.max(np.asarray(systematic(KEY, log_weights))) < 995


@pytest.mark.usefixtures("x64")
class TestWeights:
    """Normalised weights and what comes with them."""

    def test_evidence_of_reweighting(self):
        first, second = np.asarray(normal_array(30)), np.asarray(normal_array(30, seed=1))
        weights = Weights.equal(30, jnp.dtype(float)).reweighted(jnp.asarray(first)).reweighted(jnp.asarray(second))
        w = np.exp(first + second)
        assert float(weights.log_evidence) == pytest.approx(np.log(w.mean()), abs=1e-12)
        np.testing.assert_allclose(np.exp(weights.log_weights), w / w.sum(), rtol=1e-12)
        assert float(weights.ess) == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-12)

    def test_a_weight_of_zero_stays_zero(self):
        increments = normal_array(30)
        weights = Weights.equal(30, jnp.dtype(float)).reweighted(increments.at[4].set(-jnp.inf))
        for value in (jnp.inf, jnp.nan, 100.0):
            again = weights.reweighted(jnp.zeros(30).at[4].set(value))
            np.testing.assert_allclose(again.log_weights, weights.log_weights)
            assert float(again.log_evidence) == pytest.approx(float(weights.log_evidence))
        expected = np.log(np.sum(np.exp(np.delete(np.asarray(increments), 4))) / 30)
        assert float(weights.log_evidence) == pytest.approx(expected)

    def test_evidence_across_a_resampling(self):
        """After it weights are equal, so that the next factor is a plain mean over the chosen particles."""
        first, second = normal_array(30), normal_array(30, seed=1)
        before = Weights.equal(30, jnp.dtype(float)).reweighted(first)
        weights, indices = before.resampled(KEY, jnp.asarray(True))
        np.testing.assert_allclose(np.exp(weights.log_weights), 1 / 30)
        np.testing.assert_array_equal(indices, systematic(KEY, first))
        np.testing.assert_array_equal(weights.ancestors, indices)
        assert weights.num_ancestors == len(set(indices.tolist()))
        after = weights.reweighted(second[indices])
        w, v = np.exp(np.asarray(first)), np.exp(np.asarray(second[indices]))
        assert float(after.log_evidence) == pytest.approx(np.log(w.mean()) + np.log(v.mean()), abs=1e-12)

    def test_no_resampling_changes_nothing(self):
        before = Weights.equal(30, jnp.dtype(float)).reweighted(normal_array(30))
        after, indices = before.resampled(KEY, jnp.asarray(False))
        np.testing.assert_array_equal(indices, np.arange(30))
        jax.tree.map(np.testing.assert_array_equal, after, before)

    def test_ancestors_are_the_first_particles(self):
        weights, chain = Weights.equal(30, jnp.dtype(float)), np.arange(30)
        for seed in range(3):
            weights, indices = weights.reweighted(normal_array(30, seed=seed)).resampled(
                jax.random.fold_in(KEY, seed), jnp.asarray(True)
            )
            chain = chain[np.asarray(indices)]
        np.testing.assert_array_equal(weights.ancestors, chain)
        assert weights.num_ancestors == len(set(chain.tolist()))

    def test_error_by_its_formula(self):
        weights, _ = Weights.equal(30, jnp.dtype(float)).reweighted(normal_array(30)).resampled(KEY, jnp.asarray(True))
        weights = weights.reweighted(normal_array(30, seed=1))
        W, ancestors = np.exp(np.asarray(weights.log_weights)), np.asarray(weights.ancestors)
        shares = np.array([W[ancestors == e].sum() for e in range(30)])
        assert 1 < np.sum(shares > 0) < 30
        expected = np.sqrt(np.sum((shares - 1 / 30) ** 2))
        assert float(weights.log_evidence_error) == pytest.approx(expected, rel=1e-10)

    def test_one_family_has_an_error_near_1(self):
        alone = Weights.equal(30, jnp.dtype(float)).reweighted(jnp.zeros(30).at[3].set(1e3))
        weights, _ = alone.resampled(KEY, jnp.asarray(True))
        assert weights.num_ancestors == 1
        assert float(weights.log_evidence_error) == pytest.approx(np.sqrt(29 / 30), rel=1e-10)

    def test_equal_weights_have_no_error(self):
        assert Weights.equal(30, jnp.dtype(float)).log_evidence_error == pytest.approx(0.0, abs=1e-7)

    def test_error_agrees_with_the_spread_over_importance_sampling_runs(self):
        """From N(0, 1) to 3 N(0.6, 0.8^2): the spread of 600 runs is known to 1 / sqrt(2 * 600) = 3 %."""

        @jax.jit
        @jax.vmap
        def run(key: Array) -> tuple[Array, Array]:
            x = jax.random.normal(key, (300,))
            logpdf = jax.scipy.stats.norm.logpdf
            increments = logpdf(x, 0.6, 0.8) + jnp.log(3.0) - logpdf(x)
            weights = Weights.equal(300, jnp.dtype(float)).reweighted(increments)
            return weights.log_evidence, weights.log_evidence_error

        log_evidence, error = map(np.asarray, run(jax.random.split(KEY, 600)))
        relative = np.exp(log_evidence) / 3
        assert abs(relative.mean() - 1) < 4 * relative.std() / np.sqrt(600)
        # The exact variance of one weight: E[w^2] - 1 under p0, by quadrature.
        grid = np.linspace(-12, 12, 200_001)
        normal = lambda x, m, s: np.exp(-0.5 * ((x - m) / s) ** 2) / s / np.sqrt(2 * np.pi)  # noqa: E731
        exact = np.sqrt((np.trapezoid(normal(grid, 0.6, 0.8) ** 2 / normal(grid, 0, 1), grid) - 1) / 300)
        assert relative.std() == pytest.approx(exact, rel=4 * 0.03)
        assert np.sqrt(np.mean(error**2)) == pytest.approx(exact, rel=0.05)


def test_effective_sample_size():
    assert float(effective_sample_size(jnp.zeros(10))) == pytest.approx(10)
    assert float(effective_sample_size(jnp.array([0.0, -jnp.inf, 0.0]))) == pytest.approx(2)
    assert float(effective_sample_size(jnp.array([500.0, -500.0]))) == pytest.approx(1)
