"""The host loop's programs: nothing about them changes from one chunk to the next."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from helpers import METHODS, vector_problem
from pgps import run


@pytest.mark.parametrize("name", METHODS)
def test_a_step_gives_back_a_state_like_the_first(name: str):
    """Shapes, dtypes and weak types agree, so that one program serves all chunks: traced, and not compiled."""
    problem = vector_problem()
    method = jax.tree.map(lambda leaf: run._as_array(leaf, problem.structure.dtype), METHODS[name])
    lanes = run.Lanes(problem, None, jax.random.split(jax.random.key(0), 2))
    first = eqx.filter_eval_shape(run._begin, method, lanes, 12)
    later, _, _ = eqx.filter_eval_shape(run._advance, method, lanes, first, jnp.asarray(1), None)
    assert jax.tree.structure(first) == jax.tree.structure(later)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(first)]
    kinds = [[(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)] for state in (first, later)]
    changed = {path: (a, b) for path, a, b in zip(paths, *kinds, strict=True) if a != b}
    assert not changed
