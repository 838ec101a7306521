"""What property tests share: how examples are drawn, and numbers to draw them from.

Examples have few shapes, since another shape means another compilation, and are the same in every run.
"""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

# A first example compiles, which takes longer than any deadline; fixtures here hold for all examples of a test.
EXAMPLES = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

UNIT = st.floats(0, 1, allow_subnormal=False)


def vectors(num: int, low: float, high: float) -> st.SearchStrategy[np.ndarray]:
    """Vectors of this length with entries between two numbers."""
    return arrays(np.float64, (num,), elements=st.floats(low, high, allow_subnormal=False))


def log_weights(num: int, largest: float) -> st.SearchStrategy[np.ndarray]:
    """Log-weights, some of them -inf, but not all."""
    entries = st.one_of(st.floats(-largest, largest, allow_subnormal=False), st.just(-np.inf))
    return arrays(np.float64, (num,), elements=entries).filter(lambda values: bool(np.any(values > -np.inf)))
