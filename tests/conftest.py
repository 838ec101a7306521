"""Fixtures: one that every file gets, one that a test may ask for."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file() -> Iterator[None]:
    """Compiled programs are dropped after each file.

    Each one holds memory maps, of which Linux allows a process 65,530 (vm.max_map_count): a worker that kept them all
    would end in a segmentation fault inside the compiler.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision within one test; arrays and laws have to be made inside it."""
    with jax.enable_x64(True):
        yield
