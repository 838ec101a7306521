"""The many-well problem: its constants and its table of quantiles are SciPy's quadrature's."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from helpers import assert_close, assert_moments, normal_array
from pgps.targets import ManyWell, many_well, wells


def density(x: float) -> float:
    return np.exp(-(x**4) + 6 * x**2 + 0.5 * x)


def integral(low: float, high: float, power: int = 0) -> float:
    """The integral of x^power times one well's density, which is split where quad would miss a well."""
    edges = np.unique(np.clip([low, -1.7, 0.0, 1.75, high], low, high))
    return sum(scipy.integrate.quad(lambda x: x**power * density(x), *piece, epsabs=0)[0] for piece in pairwise(edges))


@pytest.mark.usefixtures("x64")
def test_logdensity():
    pairs = np.asarray(normal_array(4, 2))
    expected = sum(np.log(density(x)) - v**2 / 2 for x, v in pairs)
    assert float(ManyWell(4)(jnp.asarray(pairs.ravel()))) == pytest.approx(expected, abs=1e-12)


def test_constants():
    assert ManyWell(16).log_evidence == pytest.approx(164.6957, abs=5e-5)
    assert ManyWell(16).minor_mass == pytest.approx(0.1557, abs=5e-5)
    one = ManyWell(1)
    assert one.log_evidence == pytest.approx(np.log(integral(-5, 5)) + np.log(2 * np.pi) / 2, abs=1e-10)
    assert one.minor_mass == pytest.approx(integral(-5, 0) / integral(-5, 5), abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_table_of_quantiles(dtype: type):
    table = wells._table()
    total = integral(-5, 5)
    for x in np.random.default_rng(0).uniform(-2.5, 2.5, 50):
        found = np.interp(x, table.x.astype(dtype), table.cdf.astype(dtype))
        assert found == pytest.approx(integral(-5, x) / total, abs=1e-6)


def test_draws():
    draws = np.asarray(many_well()[0].sample(jax.random.key(2), 20_000), float)
    x, v = draws[:, 0::2], draws[:, 1::2]
    total = integral(-5, 5)
    mean = integral(-5, 5, 1) / total
    assert_moments(x, mean, integral(-5, 5, 2) / total - mean**2)
    assert_moments(v, 0, 1)
    assert_moments(x < 0, ManyWell().minor_mass, ManyWell().minor_mass * (1 - ManyWell().minor_mass))
    # Wells are independent of each other and of the normal coordinates.
    correlations = np.corrcoef(draws.T)[~np.eye(32, dtype=bool)]
    assert np.abs(correlations).max() < 5 / np.sqrt(len(draws))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-23])
def test_the_most_extreme_draw_is_no_outlier(monkeypatch: pytest.MonkeyPatch, uniform: float):
    # The smallest and largest number that jax.random.uniform returns in single precision.
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, uniform, jnp.float32))
    x = float(ManyWell(1).sample(jax.random.key(0), 1)[0, 0])
    assert 2 < abs(x) < 2.9


def test_the_problem():
    target, initial = many_well(3)
    assert (target.num_wells, target.dim) == (3, 6)
    assert many_well()[0].dim == 32
    assert_close((initial.loc, initial.scale), (jnp.zeros(6), jnp.ones(6)))


def test_misuse():
    with pytest.raises(ValueError, match="num_wells must be at least 1"):
        ManyWell(0)
