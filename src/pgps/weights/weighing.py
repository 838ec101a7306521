"""How a run weighs its particles."""

import equinox as eqx

from pgps import _checks
from pgps.weights.resampling import Scheme, systematic


class Weighing(eqx.Module):
    """Exact weights for particles on two islands: the field that moves one is fitted on the other.

    A field that is fitted to the particles that it then moves seems better than it is, and the evidence is then wrong
    by more than its error. Across islands it cannot.

    Args:
        resample_below: Resample an island when its effective sample size falls below this share of its particles.
        scheme: How: `systematic`, `residual`, or another one that gives each particle its expected number of copies.
    """

    resample_below: float = 0.5
    scheme: Scheme = eqx.field(static=True, default=systematic)

    def __check_init__(self):
        _checks.within("resample_below", self.resample_below, 0, 1)
        _checks.function("scheme", self.scheme, "(key, log_weights) -> indices")
