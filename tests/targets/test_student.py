"""Mixtures of t components: their density is SciPy's; the contract tests check their draws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from helpers import assert_close, normal_array
from pgps.targets import StudentMixture, student_t_mixture


def uneven(df: float, dim: int) -> StudentMixture:
    return StudentMixture(jnp.array([0.3, 0.7]), 5 * normal_array(2, dim, seed=7), jnp.array([0.4, 2.0]), df)


@pytest.mark.parametrize(("df", "dim"), [(2.0, 1), (6.5, 3)])
@pytest.mark.usefixtures("x64")
def test_logdensity(df: float, dim: int):
    mixture = uneven(df, dim)
    x = np.asarray(4 * normal_array(9, dim))
    law: Any = scipy.stats.multivariate_t  # whose stubs take whole numbers only
    components = [
        law(np.asarray(mean), float(scale) ** 2 * np.eye(dim), df).logpdf(x)
        for mean, scale in zip(mixture.means, mixture.scales, strict=True)
    ]
    expected = scipy.special.logsumexp(components, b=np.asarray(mixture.weights)[:, None], axis=0)
    assert_close(jax.jit(jax.vmap(mixture))(jnp.asarray(x)), jnp.asarray(expected))


def test_the_problem():
    target, initial = student_t_mixture(5)
    assert target.means.shape == (10, 5)
    assert np.all(np.abs(target.means) <= 10)
    assert float(np.abs(target.means).max()) > 9
    assert_close((target.weights, target.scales), (jnp.full(10, 0.1), jnp.ones(10)), 1e-7)
    assert float(target.df) == 2
    assert_close((initial.loc, initial.scale), (jnp.zeros(5), jnp.full(5, 10.0)))


def test_misuse():
    with pytest.raises(ValueError, match="df must be positive, got"):
        StudentMixture(jnp.ones(1), jnp.zeros((1, 2)), jnp.ones(1), -1.0)
