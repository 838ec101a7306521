"""What in the trace of a PGPS run should make its user wary, one sentence each."""

import numpy as np

from pgps.adjustments.base import AbstractAdjustment
from pgps.adjustments.hmc import HMC
from pgps.adjustments.mala import MALA
from pgps.adjustments.metropolis import LEAST_OF_AIM
from pgps.methods.base import Trace

# What makes a run doubtful: such a spread of local widths, a funnel of such widths, islands so far apart, moves and
# steps as short as this, alone and as a share of t, and so many proposals beyond edges that nobody knew of.
_WIDEST_SPREAD = 3.0
_LARGEST_RATIO = 20.0
_FARTHEST_APART = 4.0
_LEAST_COVERED = 0.25
_SHORTEST_STEP = 1e-6
_SHORTEST_SHARE = 1e-2
_LARGEST_OUTSIDE = 0.01


def training_doubts(trace: Trace) -> list[str]:
    """Training that ended above its threshold."""
    missed = ~trace["converged"]
    if not missed.any():
        return []
    worst = np.argmax(np.where(missed, trace["loss"], -np.inf))
    started = trace["t"][worst] - trace["dt"][worst]
    return [
        f"training ended above its threshold at {missed.sum()} of {len(missed)} steps (worst: a loss of "
        f"{trace['loss'][worst]:.3g} at t = {started:.3g}), so the particles may lag behind the path; "
        "give the trainer more steps, or take smaller ones along the path"
    ]


def path_doubts(trace: Trace, moves: AbstractAdjustment) -> list[str]:
    """What in a weighted run's trace should be doubted, beyond what any weights show."""
    if not len(trace["t"]):
        return []
    doubts = []
    if (spread := trace["width_spread"][-1]) > _WIDEST_SPREAD:
        doubts.append(
            f"the density is {spread:.0f} times as wide around some particles as around others, more than moves of one "
            "step size can serve, so narrow or far-out parts may be missing and the evidence too low; write the model "
            "in other coordinates, or ask for more moves"
        )
    if (ratio := trace["width_ratio"][-1]) > _LARGEST_RATIO:
        doubts.append(
            f"the density is a funnel, {ratio:.0f} times as wide at its mouth as at its neck, which is filled late on "
            "the way, so the evidence may be too low by more than its error; write the model in coordinates that are "
            "not centred, or ask for more moves"
        )
    doubts += mixing_doubts(trace, moves)
    if (apart := trace["disagreement"][-1]) > _FARTHEST_APART:
        doubts.append(
            f"the two islands are {apart:.1f} standard errors apart in the log evidence, so a part of the target is "
            "missing on one of them; take more particles"
        )
    if np.any(trace["has_edge"] & ~trace["keeps_support"]):
        doubts.append(
            "the density falls to 0 at once somewhere, and the path moves that place as t grows, so the evidence may "
            "be too low by more than its error; take the geometric path, as in pgps.exact(alpha=0, beta=1)"
        )
    # Steps that grow with t are as they should be: a narrow target takes shape at a small t.
    is_short = (trace["dt"] < np.minimum(_SHORTEST_STEP, _SHORTEST_SHARE * trace["t"])) & (trace["t"] < 1)
    shortest = int(np.argmin(np.where(is_short, trace["dt"], np.inf)))
    if is_short[shortest]:
        doubts.append(
            f"time steps fell to {trace['dt'][shortest]:.1g} at t = {trace['t'][shortest]:.3g}: there the initial law "
            "and the target hardly overlap; start from a law that covers the target"
        )
    return doubts


def mixing_doubts(trace: Trace, moves: AbstractAdjustment) -> list[str]:
    """Last moves that were short; also where modes of different widths are apart, between which none can lead."""
    # Without moves nothing is known of them.
    if not len(trace["t"]) or not (covered := trace["covered"][-1]) < _least_covered(trace, moves):
        return []
    return [
        f"the last moves covered {covered:.0%} of the way between independent particles, or between narrow and wide "
        "parts of the density, so parts that are far away may be missing and the evidence too low; ask for more moves"
    ]


def suspects_edge(trace: Trace) -> bool:
    """Whether fields or moves have met places without density that the first weights did not know of."""
    if "has_edge" not in trace or not len(trace["t"]) or (trace["has_edge"][0] and not trace["finds_edge"][0]):
        return False
    return bool(trace["has_edge"][-1] or np.min(trace["inside"]) < 1 - _LARGEST_OUTSIDE)


def _least_covered(trace: Trace, moves: AbstractAdjustment) -> float:
    """What the last moves must have covered: more, if they would have been more had they been allowed to."""
    if not isinstance(moves, HMC | MALA) or moves.mixing is None:
        return _LEAST_COVERED
    is_limited = trace["adjustment_steps"][-1] >= moves.max_steps
    return max(_LEAST_COVERED, LEAST_OF_AIM * float(moves.mixing)) if is_limited else _LEAST_COVERED
