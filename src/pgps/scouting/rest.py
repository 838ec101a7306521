"""Whether weighted particles are at rest: Stein's identity, which scores alone can check.

Under a density p whose score is s, every smooth vector field phi that does not grow too fast has

    E[g] = 0,    g(x) = s(x) . phi(x) + div phi(x).

Particles that still drift, into the arms of a banana or the neck of a funnel, break it for fields that point there. As
fields serve the quadratic ones, damped far out so that the identity holds under any tails: with coordinates u in
standard deviations from the mean,

    phi(u) = w(u) (c + B u + u'A u),    w(u) = (1 + |u|^2 / 16 D)^(-1).

One half of the particles finds the field with the largest ratio mean(g)^2 / mean(g^2), by ridge regression of 1 on g;
the other half has its mean, whose standard error knows of families. The square of mean(g) / sd(g) is a lower bound of
the chi-squared divergence of the particles' law from p (up to the noise): it tells how much there is to doubt, and
the standard error how surely. Modes that are apart with wrong masses do not show, for g is the same in each of them. A
density with an edge breaks the identity by itself.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg

from pgps.metrics.base import normalised_weights
from pgps.metrics.moments import moments

# The damping's reach, and the ridge as a share of the mean square of g.
_REACH = 16.0
_RIDGE = 1e-5
# So many particles on each side are enough.
_MOST = 500
# What is doubted: ratios above this, by so many standard errors.
_LARGEST_RATIO = 0.2
_STANDARD_ERRORS = 5.0


class Rest(NamedTuple):
    """Mean(g) / sd(g) of the field that shows most, and in how many standard errors it is above 0."""

    ratio: float
    standard_errors: float


class Side(NamedTuple):
    """One half of the particles: coordinates and scores in standard deviations, log-weights and families."""

    u: Float[np.ndarray, "n dim"]
    scores: Float[np.ndarray, "n dim"]
    log_weights: Float[np.ndarray, " n"]
    families: Int[np.ndarray, " n"]


def at_rest(
    particles: Float[np.ndarray, "n dim"],
    scores: Float[np.ndarray, "n dim"],
    log_weights: Float[np.ndarray, " n"],
    families: Int[np.ndarray, " n"],
) -> Rest:
    """Look at both halves with the field that the other one finds; halves must be independent, as islands are.

    Args:
        particles: The weighted sample.
        scores: The gradient of the log-density at each particle.
        log_weights: Their log-weights.
        families: The first ancestor of each particle.
    """
    stride = -(-len(particles) // (2 * _MOST))
    x, s, log_weights, families = (array[::stride] for array in (particles, scores, log_weights, families))
    weights = normalised_weights(log_weights, len(x))
    center = weights @ x.astype(float)
    scale = np.sqrt(weights @ (x - center) ** 2)
    used, half = scale > 0, len(x) // 2
    if not used.any() or not all(np.isfinite(own).any() for own in (log_weights[:half], log_weights[half:])):
        # Particles in one place show nothing, and an island that has lost all of its weight cannot be compared.
        return Rest(0.0, 0.0)
    u, s = (x - center)[:, used] / scale[used], (s * scale)[:, used]
    # Single precision will do: the ridge is far above its rounding. It takes half of the time.
    u, s = u.astype(np.float32), s.astype(np.float32)
    one, other = (Side(u[i], s[i], log_weights[i], families[i]) for i in (slice(half), slice(half, None)))
    between = _stein_kernel(one, other)
    found = _look(one, other, between.T), _look(other, one, between)
    return Rest(*np.sum(found, axis=0) / (2, np.sqrt(2)))


def unrest(rest: Rest) -> list[str]:
    """What is doubtful, in words."""
    if not (rest.ratio > _LARGEST_RATIO and rest.standard_errors > _STANDARD_ERRORS):
        return []
    return [
        f"particles and density do not balance (Stein's identity is off by {rest.ratio:.2f} standard deviations, "
        f"{rest.standard_errors:.0f} standard errors): if the density has no jumps, particles were still on their way "
        "into parts of it, and the evidence is too low; ask for more moves, or write the model in other coordinates"
    ]


def _stein_kernel(one: Side, other: Side) -> Float[np.ndarray, "n m"]:
    """Products of g between particles, summed over all damped quadratic fields: k0 of w(u) w(v) (1 + u.v / D)^2."""
    dim = one.u.shape[1]
    growth, scores, radial = _damped(one)
    other_growth, other_scores, other_radial = _damped(other)
    # (s.s') base^2 + 2/D (base (r + r' + D) + base - 1), in place: these matrices are what takes time here.
    base, k0 = one.u @ other.u.T, scores @ other_scores.T
    base /= dim
    base += 1
    k0 *= base
    k0 += 2 / dim * radial[:, None]
    k0 += 2 / dim * (other_radial + dim + 1)
    k0 *= base
    k0 -= 2 / dim
    k0 /= growth[:, None]
    k0 /= other_growth
    return k0


def _damped(side: Side) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n dim"], Float[np.ndarray, " n"]]:
    """1 / w(u), the scores of the density times w(u), and their products with u."""
    u, dim = side.u, side.u.shape[1]
    growth = 1 + np.sum(u**2, axis=1) / (_REACH * dim)
    # The damping enters as if it were a factor of the density.
    scores = side.scores - 2 * u / (_REACH * dim * growth[:, None])
    return growth, scores, np.sum(scores * u, axis=1)


def _look(finding: Side, looking: Side, between: Float[np.ndarray, "m n"]) -> tuple[float, float]:
    """The ratio and its standard errors on one side, for the field that the other side finds."""
    gram = _stein_kernel(finding, finding)
    root = np.sqrt(normalised_weights(finding.log_weights, len(gram))).astype(gram.dtype)
    gram = root[:, None] * gram * root
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram)
    # Without the condition number, which `linalg.solve` would estimate: the ridge bounds it.
    g = between @ (root * linalg.cho_solve(linalg.cho_factor(gram, lower=True, overwrite_a=True), root))
    found = moments(g, looking.log_weights, looking.families)
    if not found.sd > 0 or not found.mean_error > 0:
        return 0.0, 0.0
    return float(found.mean / found.sd), float(found.mean / found.mean_error)
