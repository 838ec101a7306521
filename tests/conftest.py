"""Fixtures that every test may ask for; none is on unless a test names it."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision within one test; arrays and laws have to be made inside it."""
    with jax.enable_x64(True):
        yield
