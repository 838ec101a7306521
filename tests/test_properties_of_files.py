"""What holds for anything that is written: results and checkpoints come back as they were, and damage is noticed."""

import collections
import dataclasses
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import pgps
from pgps import storage
from pgps.checkpoint import Keeper, Kept
from pgps.density import Evaluations
from properties import EXAMPLES

NUM = 3


class Pair(NamedTuple):
    first: Any
    second: Any


class Nothing(NamedTuple):
    pass


def numbers(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any floats, nan and infinities too."""
    width = 32 if dtype == "float32" else 16
    drawn = arrays(f"float{width}", shape, elements=st.floats(width=width))
    return drawn.map(lambda array: array.astype(jnp.dtype(dtype)))


NAMES = st.text(max_size=8) | st.sampled_from(["file", "a/b", "../x", "a.npy", "\0", "é🦉", "%41", "\udc80", "95%"])
SHAPES = array_shapes(max_dims=2, max_side=2).map(lambda shape: (NUM, *shape)) | st.just((NUM,))
LEAVES = st.tuples(st.sampled_from(["float32", "float16", "bfloat16"]), SHAPES).flatmap(lambda leaf: numbers(*leaf))
TREES = st.recursive(
    LEAVES | st.none() | st.just(Nothing()),
    lambda tree: (
        st.dictionaries(NAMES, tree, max_size=3)
        | st.dictionaries(NAMES, tree, max_size=3).map(collections.OrderedDict)
        | st.dictionaries(st.integers(0, 9), tree, max_size=3)
        | st.lists(tree, max_size=3)
        | st.tuples(tree, tree)
        | st.builds(Pair, tree, tree)
    ),
    max_leaves=6,
).filter(lambda tree: bool(jax.tree.leaves(tree)))
FIGURES = st.none() | st.floats()


def make_result(particles: Any, trace: dict[str, np.ndarray], log_weights: np.ndarray, figures: list) -> pgps.Result:
    """A result with these parts; `figures` are the effective sample size, the log evidence and its error."""
    ess, log_evidence, log_evidence_error = figures
    return pgps.Result(
        particles=jax.tree.map(jnp.asarray, particles),
        log_weights=jnp.asarray(log_weights),
        status=pgps.Status.COMPLETED,
        t=1.0,
        num_evaluations=Evaluations(2, 2**40),
        trace=trace,
        warnings=tuple(trace),
        provenance={"command": "\n".join(trace), "versions": {}},
        ess=ess,
        log_evidence=log_evidence,
        log_evidence_error=log_evidence_error,
        families=jnp.arange(NUM),
    )


def same(a: Any, b: Any) -> bool:
    """Whether two values agree, arrays in every bit, nan with nan."""
    if isinstance(a, jax.Array | np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and (a == b or (a != a and b != b))


@EXAMPLES
@given(
    particles=TREES,
    trace=st.dictionaries(NAMES, numbers("float32", (2,)), max_size=3),
    log_weights=numbers("float32", (NUM,)),
    figures=st.lists(FIGURES, min_size=3, max_size=3),
)
def test_a_result_comes_back_as_it_was(particles: Any, trace: dict, log_weights: np.ndarray, figures: list):
    result = make_result(particles, trace, log_weights, figures)
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder) / "run")
        plain, again = pgps.load(Path(folder) / "run"), pgps.load(Path(folder) / "run", like=particles)
    for field in dataclasses.fields(result):
        kept, read = getattr(result, field.name), getattr(again, field.name)
        assert jax.tree.structure(kept) == jax.tree.structure(read)
        assert all(map(same, jax.tree.leaves(kept), jax.tree.leaves(read))), field.name
    # Without an example plain containers come back, with the same arrays in them.
    found = {leaf.tobytes() for leaf in map(np.asarray, jax.tree.leaves(plain.particles))}
    assert found == {np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(particles)}


@EXAMPLES
@given(tree=TREES, rows=st.integers(0, 3), seconds=st.floats(0, 1e9))
def test_a_checkpoint_comes_back_as_it_was(tree: Any, rows: int, seconds: float):
    tree = jax.tree.map(jnp.asarray, tree)
    trace = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 3)[:rows], tree)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, 64, *leaf.shape), leaf.dtype), tree)
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(pgps.Checkpoint(Path(folder) / "kept"), {"of": "this run"})
        keeper.begin(Kept(tree, [trace], seconds, [0.5]))
        kept = keeper.read(tree, shapes)
        assert [path.name for path in Path(folder).iterdir()] == ["kept"]
    assert kept is not None
    assert jax.tree.structure(kept.runs) == jax.tree.structure(kept.rows[0]) == jax.tree.structure(tree)
    assert all(map(same, jax.tree.leaves(kept.runs), jax.tree.leaves(tree)))
    assert all(map(same, jax.tree.leaves(kept.rows[0]), jax.tree.leaves(trace)))
    assert (kept.seconds, kept.resumed_at) == (seconds, [0.5])


ARRAYS = {"runs/0": np.arange(12.0).reshape(3, 4), "rows/0/0": np.array([np.nan, np.inf])}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "kept"
    storage.replace_file(path, {"seconds": 1.0}, ARRAYS)
    return path


@EXAMPLES
@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_a_byte_that_was_changed_in_a_checkpoint_is_noticed(checkpoint: Path, place: float, change: int):
    content = bytearray(checkpoint.read_bytes())
    content[int(place * len(content))] ^= change
    refused(checkpoint, bytes(content))


@EXAMPLES
@given(place=st.floats(0, 1, exclude_max=True))
def test_a_checkpoint_that_was_cut_off_is_noticed(checkpoint: Path, place: float):
    content = checkpoint.read_bytes()
    refused(checkpoint, content[: int(place * len(content))])


def refused(checkpoint: Path, content: bytes) -> None:
    altered = checkpoint.with_name("altered")
    altered.write_bytes(content)
    with pytest.raises(ValueError, match="checkpoint .*; "):
        storage.read_file(altered)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    figures = [2.0, -1.0, 0.1]
    result = make_result(np.ones((NUM, 2), np.float32), {"t": np.array([1.0])}, np.zeros(NUM, np.float32), figures)
    return result.save(tmp_path_factory.mktemp("damage") / "run")


@EXAMPLES
@given(name=st.sampled_from(["result.json", "particles.npz"]), place=st.floats(0, 1), change=st.binary(max_size=3))
def test_a_result_that_was_altered_is_read_or_refused(saved: Path, name: str, place: float, change: bytes):
    with tempfile.TemporaryDirectory() as folder:
        for path in saved.iterdir():
            content = path.read_bytes()
            cut = int(place * len(content)) if path.name == name else len(content)
            # Without a change it is cut off; else bytes are replaced.
            rest = content[cut + len(change) :] if change else b""
            (Path(folder) / path.name).write_bytes(content[:cut] + change + rest)
        try:
            result = pgps.load(folder)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert result.log_weights.shape == (NUM,)
