"""Weights: the evidence, its error and the genealogy, on one island and on two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from helpers import normal_array
from pgps.weights import Weights, effective_sample_size, systematic

KEY = jax.random.key(2)
# Effective shares below which to resample: they are 1 at most.
ALWAYS, NEVER = 2.0, 0.0


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

    def test_a_weight_that_rounding_does_not_know_is_zero(self):
        """Fields that lead a particle back from nowhere would make a remainder of rounding the largest weight."""
        weights = Weights.equal(30, jnp.dtype(jnp.float32))
        for increment in (-1e30, 1e30, 3e24):
            weights = weights.reweighted(jnp.zeros(30, jnp.float32).at[4].set(increment))
        assert float(weights.log_weights[4]) == -np.inf
        assert float(weights.log_evidence) == pytest.approx(np.log(29 / 30), rel=1e-5)
        small = Weights.equal(30, jnp.dtype(jnp.float32)).reweighted(jnp.zeros(30, jnp.float32).at[4].set(-5000.0))
        assert float(small.log_weights[4]) > -5010

    def test_particles_without_weight_take_the_places_of_others(self):
        lost = jnp.asarray([4, 7, 29])
        before = Weights.equal(30, jnp.dtype(float)).reweighted(normal_array(30).at[lost].set(-jnp.inf))
        after, indices = before.resampled(KEY, NEVER)
        np.testing.assert_array_equal(after.log_weights, before.log_weights)
        kept = np.delete(np.arange(30), lost)
        np.testing.assert_array_equal(indices[kept], kept)
        assert not set(indices[lost].tolist()) & set(lost.tolist())

    def test_evidence_across_a_resampling(self):
        """After it weights are equal, so that the next factor is a plain mean over the chosen particles."""
        first, second = normal_array(30), normal_array(30, seed=1)
        before = Weights.equal(30, jnp.dtype(float)).reweighted(first)
        weights, indices = before.resampled(KEY, ALWAYS)
        np.testing.assert_allclose(np.exp(weights.log_weights), 1 / 30)
        np.testing.assert_array_equal(indices, systematic(jax.random.split(KEY, 1)[0], first))
        np.testing.assert_array_equal(weights.ancestors, indices[None])
        assert weights.num_ancestors == len(set(indices.tolist()))
        after = weights.reweighted(second[indices])
        w, v = np.exp(np.asarray(first)), np.exp(np.asarray(second[indices]))
        assert float(after.log_evidence) == pytest.approx(np.log(w.mean()) + np.log(v.mean()), abs=1e-12)

    def test_no_resampling_changes_nothing(self):
        before = Weights.equal(30, jnp.dtype(float)).reweighted(normal_array(30))
        after, indices = before.resampled(KEY, NEVER)
        np.testing.assert_array_equal(indices, np.arange(30))
        jax.tree.map(np.testing.assert_array_equal, after, before)

    def test_ancestors_are_the_first_particles(self):
        weights, chain = Weights.equal(30, jnp.dtype(float)), np.arange(30)
        for seed in range(3):
            weights, indices = weights.reweighted(normal_array(30, seed=seed)).resampled(
                jax.random.fold_in(KEY, seed), ALWAYS
            )
            chain = chain[np.asarray(indices)]
        np.testing.assert_array_equal(weights.ancestors, chain[None])
        assert weights.num_ancestors == len(set(chain.tolist()))

    def test_error_by_its_formula(self):
        weights, _ = Weights.equal(30, jnp.dtype(float)).reweighted(normal_array(30)).resampled(KEY, ALWAYS)
        weights = weights.reweighted(normal_array(30, seed=1))
        W, ancestors = np.exp(np.asarray(weights.log_weights)), np.asarray(weights.ancestors)[0]
        shares = np.array([W[ancestors == e].sum() for e in range(30)])
        assert 1 < np.sum(shares > 0) < 30
        expected = np.sqrt(np.sum((shares - 1 / 30) ** 2))
        assert float(weights.log_evidence_error) == pytest.approx(expected, rel=1e-10)

    def test_one_family_has_an_error_near_1(self):
        alone = Weights.equal(30, jnp.dtype(float)).reweighted(jnp.zeros(30).at[3].set(1e3))
        weights, _ = alone.resampled(KEY, ALWAYS)
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


def on_two_islands(*increments: np.ndarray) -> Weights:
    """Equal weights on two islands, after these increments."""
    weights = Weights.equal(increments[0].size, jnp.dtype(float), islands=2)
    for increment in increments:
        weights = weights.reweighted(jnp.asarray(increment))
    return weights


@pytest.mark.usefixtures("x64")
class TestIslands:
    """Two islands: weighed and resampled each for itself, and averaged."""

    def test_evidence_is_the_mean_of_both_and_weights_are_joint(self):
        first, second = np.array(normal_array(20)), np.array(normal_array(20, seed=1))
        # The second island has about seven times the evidence of the first.
        first[10:] += 2.0
        weights = on_two_islands(first, second)
        w = np.exp(first + second)
        np.testing.assert_allclose(np.exp(weights.log_evidences), [w[:10].mean(), w[10:].mean()], rtol=1e-12)
        assert float(weights.log_evidence) == pytest.approx(np.log(w.mean()), abs=1e-12)
        np.testing.assert_allclose(np.exp(weights.log_weights), w / w.sum(), rtol=1e-12)
        assert float(weights.ess) == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-12)
        shares = [v.sum() ** 2 / (v**2).sum() / 10 for v in (w[:10], w[10:])]
        np.testing.assert_allclose(weights.effective_shares, shares, rtol=1e-12)

    def test_an_island_without_weight(self):
        increments = np.asarray(normal_array(20)).copy()
        increments[:10] = -np.inf
        weights = on_two_islands(increments)
        w = np.exp(increments)
        for key in (None, *jax.random.split(KEY, 3)):
            if key is not None:
                weights, indices = weights.resampled(key, ALWAYS)
                assert np.all(np.asarray(indices[10:]) >= 10)
                weights = weights.reweighted(jnp.zeros(20))
            assert float(weights.log_evidence) == pytest.approx(np.log(w.mean()), abs=1e-12)
            assert np.all(np.exp(weights.log_weights[:10]) == 0)
            assert float(jnp.sum(jnp.exp(weights.log_weights[10:]))) == pytest.approx(1)
            # One of two estimates is 0: the mean is off by as much as itself.
            assert 0.6 < float(weights.log_evidence_error) < 1.2
            assert np.isfinite(weights.ess)

    def test_error_is_the_larger_of_families_and_islands(self):
        increments = np.asarray(normal_array(20))
        by_families = lambda w: np.sqrt(np.sum((w / w.sum() - 1 / 20) ** 2))  # noqa: E731
        # The same weights on both: islands agree, and what is left is the error of importance sampling.
        agreeing = np.tile(increments[:10], 2)
        assert float(on_two_islands(agreeing).log_evidence_error) == pytest.approx(by_families(np.exp(agreeing)))
        # Evidences of 1 and e: their mean has a standard error of half their difference.
        apart = np.repeat([0.0, 1.0], 10)
        expected = (np.e - 1) / 2 / ((np.e + 1) / 2)
        assert float(on_two_islands(apart).log_evidence_error) == pytest.approx(expected, rel=0.05)
        # Both at once: the larger one.
        both = on_two_islands(increments + 2 * apart)
        means = np.exp(increments + 2 * apart).reshape(2, 10).mean(axis=1)
        assert float(both.log_evidence_error) >= 0.8 * abs(means[0] - means[1]) / means.sum()

    def test_resampling_stays_within_islands(self):
        increments = np.array(2 * normal_array(20))
        increments[10:] = 0.01 * increments[10:] + 3.0
        before = on_two_islands(increments)
        after, indices = before.resampled(KEY, 0.5)
        # The first island needs it, the second does not.
        assert float(before.effective_shares[0]) < 0.5 < float(before.effective_shares[1])
        assert np.all(np.asarray(indices[:10]) < 10)
        assert len(set(indices[:10].tolist())) < 10
        np.testing.assert_array_equal(indices[10:], np.arange(10, 20))
        np.testing.assert_allclose(np.exp(after.on_islands[0]), 0.1)
        np.testing.assert_array_equal(after.on_islands[1], before.on_islands[1])
        np.testing.assert_array_equal(after.ancestors.reshape(-1), indices % 10)
        np.testing.assert_array_equal(after.log_evidences, before.log_evidences)
        assert after.num_ancestors == len(set(indices.tolist()))
        both, indices = before.resampled(KEY, ALWAYS)
        np.testing.assert_array_equal(np.asarray(indices) >= 10, np.arange(20) >= 10)
        assert float(both.log_evidence) == pytest.approx(float(before.log_evidence))


def test_effective_sample_size():
    assert float(effective_sample_size(jnp.zeros(10))) == pytest.approx(10)
    assert float(effective_sample_size(jnp.array([0.0, -jnp.inf, 0.0]))) == pytest.approx(2)
    assert float(effective_sample_size(jnp.array([500.0, -500.0]))) == pytest.approx(1)
