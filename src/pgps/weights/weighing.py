"""How a run weighs its particles."""

import equinox as eqx

from pgps import _checks
from pgps.steppers.conditional_ess import ConditionalESS


class Weighing(eqx.Module):
    """Exact weights for particles on two islands: the field is fitted on the second, and moves those of the first.

    A field that is fitted to the particles that it then moves seems better than it is, and the evidence is then wrong
    by more than its error. Across islands it cannot.

    Args:
        resample_below: Resample an island when its effective sample size falls below this share of its particles.
        pace: The conditional effective sample size of the second island's particles, whose weights change more.
    """

    resample_below: float = 0.5
    pace: ConditionalESS = ConditionalESS(0.8)

    def __check_init__(self):
        _checks.within("resample_below", self.resample_below, 0, 1)
        _checks.instance("pace", self.pace, ConditionalESS, "pgps.steppers")
