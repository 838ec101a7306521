"""Log-densities that are hard on a sampler, one by one, as docs/faults.md has it: the answer is right, or it is told.

All densities are one program that is told which to be: what takes long is compilation.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import cauchy, norm
from jaxtyping import Array
from scipy.integrate import quad

import pgps
from helpers import HostDensity
from pgps import adjustments, methods
from pgps.density import Population
from pgps.outcome import _resolution
from pgps.result import Status

pytestmark = pytest.mark.filterwarnings("ignore::pgps.PGPSWarning")

KEY = jax.random.key(5)
NUM = 1000
EDGE = 1.5
JUMP = 3.0


def gaussian(x: Array) -> Array:
    return jnp.sum(norm.logpdf(x))


def no_mass_on_the_left(x: Array) -> Array:
    return jnp.where(x[0] > 0, gaussian(x), -jnp.inf)


def nan_gradient_on_the_right(x: Array) -> Array:
    """The slope of the root of 0 is infinite, and 0 times that is nan; the value is that of a Gaussian."""
    return gaussian(x) + 0 * jnp.sqrt(jnp.maximum(EDGE - x[0], 0))


def overflows_far_out(x: Array) -> Array:
    """Beyond 9.4 the exponential is more than single precision can hold."""
    return -jnp.sum(jnp.exp(x**2))


def jumps(x: Array) -> Array:
    return gaussian(x) + jnp.where(x[0] > 0, JUMP, 0)


def heavy_tails(x: Array) -> Array:
    return jnp.sum(cauchy.logpdf(x))


def flat_within_five(x: Array) -> Array:
    return -0.5 * jnp.sum(jnp.maximum(jnp.abs(x) - 5, 0) ** 2)


def with_a_large_constant(x: Array) -> Array:
    """In single precision its values are 1/32 apart."""
    return gaussian(x) + 5e5


def with_a_larger_constant(x: Array) -> Array:
    """Its values are 1/4 apart."""
    return gaussian(x) + 4e6


DENSITIES: list[Callable[[Array], Array]] = [
    no_mass_on_the_left,
    nan_gradient_on_the_right,
    overflows_far_out,
    jumps,
    heavy_tails,
    flat_within_five,
    gaussian,
    with_a_large_constant,
    with_a_larger_constant,
]


class Density(eqx.Module):
    """One of the densities above."""

    which: Array

    def __call__(self, x: Array) -> Array:
        return jax.lax.switch(self.which, DENSITIES, x)


def run(density: Callable[[Array], Array], mean: float = 0.0, scale: float = 2.0) -> pgps.Result:
    law = pgps.Normal(jnp.full(2, mean), jnp.full(2, scale))
    which = Density(jnp.asarray(DENSITIES.index(density)))
    method = methods.TemperedSMC(moves=adjustments.MALA(num_steps=5))
    return pgps.sample(which, law, key=KEY, num_particles=NUM, method=method)


def assert_evidence(result: pgps.Result, truth: float) -> None:
    """The run is complete, and its log evidence within four of its standard errors."""
    assert result.status == Status.COMPLETED
    assert np.all(np.isfinite(result.particles))
    assert result.log_evidence is not None
    assert result.log_evidence_error is not None
    assert 0 < result.log_evidence_error < 0.2
    assert abs(result.log_evidence - np.log(truth)) < 4 * result.log_evidence_error


def weights(result: pgps.Result) -> np.ndarray:
    return np.exp(np.asarray(result.log_weights, float))


def test_regions_without_mass():
    result = run(no_mass_on_the_left)
    assert_evidence(result, 0.5)
    inside = np.asarray(result.particles)[:, 0] > 0
    assert np.all((weights(result) > 0) == inside)


def test_gradients_that_are_nan_are_refused_and_told():
    result = run(nan_gradient_on_the_right, mean=-2.0, scale=0.7)
    # What is sampled is the density without the region that moves cannot enter.
    assert_evidence(result, float(norm.cdf(EDGE)))
    assert np.all(np.asarray(result.particles)[:, 0] < EDGE)
    assert any("refused" in warning and "nan" in warning for warning in result.warnings)


def test_a_gradient_that_is_nan_at_a_particle_ends_the_run():
    result = run(nan_gradient_on_the_right)
    assert result.status == Status.NONFINITE_DENSITY
    outside = np.asarray(result.particles)[:, 0] > EDGE
    assert result.t == 0
    assert f"for {outside.sum()} of {NUM} particles (the first: {np.argmax(outside)})" in result.warnings[0]


def test_overflow_far_out_is_a_region_without_mass():
    result = run(overflows_far_out, scale=4.0)
    mass, _ = quad(lambda x: np.exp(-np.exp(x**2)), -5, 5)
    assert_evidence(result, mass**2)
    # Particles began where it overflows, and found their way.
    assert float(2 * norm.cdf(-9.4 / 4.0)) * NUM > 10


def test_a_jump_has_the_right_mass_on_either_side():
    result = run(jumps)
    assert_evidence(result, (1 + np.exp(JUMP)) / 2)
    left = np.asarray(result.particles)[:, 0] < 0
    share, w = 1 / (1 + np.exp(JUMP)), weights(result)
    assert result.ess is not None
    assert abs(w[left].sum() / w.sum() - share) < 4 * np.sqrt(share * (1 - share) / result.ess)


def test_heavy_tails_keep_their_quantiles():
    # A law that is narrower than the tails would miss them, and with them some of the evidence.
    result = run(heavy_tails, scale=10.0)
    assert_evidence(result, 1.0)
    w, x = weights(result), np.asarray(result.particles)
    assert result.ess is not None
    # 6 % lie beyond 10, so that there is no mean to compare.
    for limit in (1.0, 10.0):
        share = 2 / np.pi * np.arctan(limit)
        within = np.sum(w * (np.abs(x[:, 0]) < limit)) / w.sum()
        assert abs(within - share) < 4 * np.sqrt(share * (1 - share) / result.ess)


def test_a_flat_region_is_walked_through():
    result = run(flat_within_five)
    assert_evidence(result, (10 + np.sqrt(2 * np.pi)) ** 2)


def test_rounding_of_large_values_is_part_of_the_error_and_told_if_it_shows():
    plain, large, larger = (run(density) for density in (gaussian, with_a_large_constant, with_a_larger_constant))
    for result, constant, spacing in ((large, 5e5, 1 / 32), (larger, 4e6, 1 / 4)):
        assert result.log_evidence is not None
        assert result.log_evidence_error is not None
        assert plain.log_evidence_error is not None
        assert abs(result.log_evidence - constant) < 4 * result.log_evidence_error
        rounding = spacing * np.sqrt(len(result.trace["t"]) / 12)
        assert rounding < result.log_evidence_error < rounding + 2 * plain.log_evidence_error
    assert not any("float32" in warning for warning in plain.warnings + large.warnings)
    assert any("float32 knows them to 0.25 only" in warning for warning in larger.warnings)


def test_a_few_particles_far_out_do_not_make_values_large():
    values = jnp.array([-1.0, -2.0, -3.0, -1e9, -jnp.inf], jnp.float32)
    population = Population.of(jnp.zeros((5, 1)), values, jnp.zeros((5, 1)), jnp.zeros(5))
    assert _resolution(population) < 1e-6
    nowhere = Population.of(jnp.zeros((1, 1)), jnp.array([-jnp.inf]), jnp.zeros((1, 1)), jnp.zeros(1))
    assert _resolution(nowhere) == 0


class Unreliable(HostDensity):
    """A density on the host that raises at one of its calls, once."""

    def __init__(self, fails_at: int | None):
        super().__init__()
        self.calls, self.fails_at = 0, fails_at

    def _evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the simulator is down")
        return super()._evaluate(x)


def test_a_host_callback_that_raises_now_and_then(tmp_path):
    """The error comes through; what was done before it is in the checkpoint, and the same call goes on from there."""

    def on_host(fails_at: int | None, checkpoint: pgps.Checkpoint | None = None) -> pgps.Result:
        settings = {"key": KEY, "num_particles": 8, "method": methods.Langevin(1e-2, 20), "checkpoint": checkpoint}
        return pgps.sample(Unreliable(fails_at), pgps.Normal(shape=(2,)), **settings)

    # So rarely that only the failure itself can have it written.
    checkpoint = pgps.Checkpoint(tmp_path / "kept", every=1e6)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the simulator is down"):
        on_host(8, checkpoint)
    resumed = on_host(None, checkpoint)
    assert resumed.status == Status.COMPLETED
    assert resumed.provenance["resumed_at"][0] > 0
    whole = on_host(None)
    np.testing.assert_array_equal(resumed.particles, whole.particles)
    assert resumed.num_evaluations == whole.num_evaluations
