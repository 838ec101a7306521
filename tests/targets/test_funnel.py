"""The funnel: its density is a product of SciPy's normal laws, and its draws are normal once scaled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from helpers import assert_close, assert_moments, normal_array
from pgps.targets import Funnel, funnel


@pytest.mark.parametrize(("dim", "scale"), [(10, 3.0), (2, 0.7)])
@pytest.mark.usefixtures("x64")
def test_logdensity(dim: int, scale: float):
    x = np.asarray(normal_array(20, dim)) * 3
    widths = np.exp(x[:, :1] / 2)
    expected = scipy.stats.norm.logpdf(x[:, 0], 0, scale) + scipy.stats.norm.logpdf(x[:, 1:], 0, widths).sum(axis=1)
    assert_close(jax.jit(jax.vmap(Funnel(dim, scale)))(jnp.asarray(x)), jnp.asarray(expected))


def test_draws():
    draws = np.asarray(jax.jit(lambda key: Funnel().sample(key, 20_000))(jax.random.key(4)), float)
    assert_moments(draws[:, 0], 0, 9)
    # Given x_0 the others are normal, of the same width everywhere in the funnel.
    standard = draws[:, 1:] * np.exp(-draws[:, :1] / 2)
    assert_moments(standard, 0, 1)
    assert_moments(standard[draws[:, 0] < -4], 0, 1)
    assert_moments(standard[draws[:, 0] > 4], 0, 1)


def test_the_problem():
    target, initial = funnel()
    assert (target.dim, float(target.scale), target.log_evidence) == (10, 3.0, 0.0)
    assert_close((initial.loc, initial.scale), (jnp.zeros(10), jnp.ones(10)))


@pytest.mark.parametrize(
    ("dim", "scale", "message"), [(1, 3.0, "dim must be at least 2"), (3, 0.0, "scale must be positive")]
)
def test_misuse(dim: int, scale: float, message: str):
    with pytest.raises(ValueError, match=message):
        Funnel(dim, scale)
