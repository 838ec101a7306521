"""Quantiles by a sort of integers, against those of numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgps.quantiles import ascending, quantiles


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.usefixtures("x64")
def test_order_of_all_kinds_of_numbers(dtype: jnp.dtype):
    values = jnp.asarray([3.0, -1e-3, jnp.inf, 0.0, -2.0, -jnp.inf, 1e-30, -1e4, 2.0, -0.0], dtype)
    np.testing.assert_array_equal(ascending(values), np.sort(np.asarray(values)))
    assert ascending(values).dtype == dtype
    assert jnp.isnan(ascending(values.at[0].set(jnp.nan))[-1])


@pytest.mark.parametrize("num", [1, 2, 101, 200])
def test_quantiles_are_those_of_numpy(num: int):
    values = jax.random.normal(jax.random.key(num), (num, 3))
    levels = np.array([0.0, 0.02, 0.5, 0.9, 1.0])
    np.testing.assert_allclose(quantiles(values, levels), np.quantile(values, levels, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(quantiles(values[:, 0], levels), np.quantile(values[:, 0], levels), rtol=1e-5, atol=1e-6)
