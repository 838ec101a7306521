"""One time step for both islands, and the bias of a step whose length follows chance."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgps
from pgps import adjustments, fields, trainers
from pgps.methods.leap import common_step, ladder_bias

HAS_WEIGHT, HAS_NONE = 0.0, -np.inf


@pytest.mark.parametrize(
    ("dts", "evidences", "dt", "gap"),
    [
        ((0.3, 0.3), (HAS_WEIGHT, HAS_WEIGHT), 0.3, 0.0),
        ((0.1, 0.2), (HAS_WEIGHT, HAS_WEIGHT), math.sqrt(0.02), -math.log(2)),
        # Not so far that the more cautious island would lose its particles.
        ((0.5, 0.001), (HAS_WEIGHT, HAS_WEIGHT), 0.002, math.log(500)),
        ((0.5, 0.001), (HAS_WEIGHT, HAS_NONE), 0.5, 0.0),
        ((0.5, 0.001), (HAS_NONE, HAS_NONE), 1.0, 0.0),
    ],
)
def test_islands_take_one_step_between_those_that_they_choose(dts, evidences, dt: float, gap: float):
    found = common_step(jnp.asarray(dts), jnp.asarray(evidences))
    np.testing.assert_allclose(found, (dt, gap), rtol=1e-6)


def test_a_step_that_both_islands_choose_is_not_rounded():
    """Else t would not reach the times of a ladder."""
    dts = jnp.asarray(np.random.default_rng(0).uniform(0, 1, 1000), jnp.float32)
    found, _ = jax.vmap(lambda dt: common_step(jnp.stack([dt, dt]), jnp.zeros(2)))(dts)
    np.testing.assert_array_equal(found, dts)


def test_the_bias_of_steps_that_follow_chance_shows_in_the_islands():
    """Rates with a heavy tail: where it is empty, their spread and their mean are small, and the step is long."""
    rates = np.random.default_rng(0).lognormal(size=(100_000, 2, 100))
    means, dts = rates.mean(axis=2), 0.1 / rates.std(axis=2)
    dt = np.sqrt(dts[:, 0] * dts[:, 1])
    biases = dt * (means.mean(axis=1) - math.exp(0.5))
    told = ladder_bias(np.log(dts[:, 0] / dts[:, 1]), (dt[:, None] * means).T)
    true, error = biases.mean(), biases.std() / math.sqrt(len(biases))
    assert true < -50 * error
    # It is of the first order in chance, and islands of 100 are small.
    assert 0.7 < np.mean(told) / true < 1.3


def test_islands_without_evidence_tell_nothing():
    gains = jnp.asarray([[-jnp.inf, 0.0], [-jnp.inf, -jnp.inf], [jnp.nan, 0.0]])
    assert [float(ladder_bias(jnp.asarray(0.5), gain)) for gain in gains] == [0.0, 0.0, 0.0]


def test_the_bias_is_part_of_the_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgps.methods.pgps.ladder_bias", lambda gap, gains: jnp.ones_like(gap))
    with pytest.warns(pgps.PGPSWarning, match="the log evidence is uncertain"):
        result = pgps.sample(
            lambda x: -0.5 * jnp.sum((x - 1) ** 2),
            pgps.Normal(shape=(2,)),
            key=jax.random.key(0),
            # A number of its own, so that no compiled program is at hand.
            num_particles=84,
            method=pgps.exact(
                field=fields.Zero(), trainer=trainers.NoTraining(), moves=adjustments.NoAdjustment(), scouting=None
            ),
        )
    num_steps = len(result.trace["t"])
    assert result.log_evidence_error is not None
    assert 1 < num_steps < result.log_evidence_error < num_steps + 0.1
