"""Whether weighted particles are at rest: Stein's identity, which scores alone can check.

Under a density p whose score is s, every smooth vector field phi that does not grow too fast has

    E[g] = 0,    g(x) = s(x) . phi(x) + div phi(x).

Particles that still drift, into the arms of a banana or the neck of a funnel, break it for fields that point there. As
fields serve the quadratic ones, damped far out so that the identity holds under any tails: with coordinates u in
standard deviations from the mean,

    phi(u) = w(u) (c + B u + u'A u),    w(u) = (1 + |u|^2 / 16 D)^(-1).

One half of the particles finds the field with the largest ratio mean(g)^2 / mean(g^2), by ridge regression of 1 on g
with conjugate gradients; the other half has its mean, whose standard error knows of families. The square of
mean(g) / sd(g) is a lower bound of the chi-squared divergence of the particles' law from p (up to the noise): it tells
how much there is to doubt, and the standard error how surely. Modes that are apart with wrong masses do not show, for g
is the same in each of them. A density with an edge breaks the identity by itself.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgps.metrics.base import normalised_weights
from pgps.metrics.moments import moments

# The damping's reach, and the ridge as a share of the mean square of g.
_REACH = 16.0
_RIDGE = 1e-5
# So many particles on each side are enough.
_MOST = 500
# Rounds of conjugate gradients, and the residual at which there are enough.
_MOST_ROUNDS = 100
_TOLERANCE = 1e-2
# What is doubted: ratios above this, by so many standard errors.
_LARGEST_RATIO = 0.2
_STANDARD_ERRORS = 5.0


class Rest(NamedTuple):
    """Mean(g) / sd(g) of the field that shows most, and in how many standard errors it is above 0."""

    ratio: float
    standard_errors: float


class Side(NamedTuple):
    """One half of the particles: coordinates and scores in standard deviations, and square roots of weights."""

    u: Float[Array, "n dim"]
    scores: Float[Array, "n dim"]
    root: Float[Array, " n"]


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
    halves = [slice(half), slice(half, None)]
    found = _strongest_fields(*(_side(u[own], s[own], log_weights[own]) for own in halves))
    seen = [_look(np.asarray(g), log_weights[own], families[own]) for g, own in zip(found, halves, strict=True)]
    return Rest(*np.sum(seen, axis=0) / (2, np.sqrt(2)))


def unrest(rest: Rest) -> list[str]:
    """What is doubtful, in words."""
    if not (rest.ratio > _LARGEST_RATIO and rest.standard_errors > _STANDARD_ERRORS):
        return []
    return [
        f"particles and density do not balance (Stein's identity is off by {rest.ratio:.2f} standard deviations, "
        f"{rest.standard_errors:.0f} standard errors): if the density has no jumps, particles were still on their way "
        "into parts of it, and the evidence is too low; ask for more moves, or write the model in other coordinates"
    ]


def _side(
    u: Float[np.ndarray, "n dim"], scores: Float[np.ndarray, "n dim"], log_weights: Float[np.ndarray, " n"]
) -> Side:
    root = np.sqrt(normalised_weights(log_weights, len(u)))
    # Single precision will do: the ridge is far above its rounding. It takes half of the time.
    return Side(*(jnp.asarray(array, jnp.float32) for array in (u, scores, root)))


# Compiled, and not by NumPy and SciPy: each has threads of its own, which got in the way of each other and of XLA's.
@jax.jit
def _strongest_fields(one: Side, other: Side) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """g on either side, of the field that the opposite side finds."""
    between = _stein_kernel(one, other)
    return between @ _dual_field(other), between.T @ _dual_field(one)


def _dual_field(side: Side) -> Float[Array, " n"]:
    """The field that shows most on one side, as coefficients of its particles' kernels."""
    gram = side.root[:, None] * _stein_kernel(side, side) * side.root
    gram += _RIDGE * jnp.trace(gram) * jnp.eye(len(gram), dtype=gram.dtype)
    # LAPACK's threads and XLA's wait for each other in matrices of this size, for longer than all else here takes.
    rounds = {"tol": _TOLERANCE, "maxiter": _MOST_ROUNDS}
    return side.root * jax.scipy.sparse.linalg.cg(lambda v: gram @ v, side.root, **rounds)[0]


def _stein_kernel(one: Side, other: Side) -> Float[Array, "n m"]:
    """Products of g between particles, summed over all damped quadratic fields: k0 of w(u) w(v) (1 + u.v / D)^2."""
    dim = one.u.shape[1]
    growth, scores, radial = _damped(one)
    other_growth, other_scores, other_radial = _damped(other)
    base = 1 + one.u @ other.u.T / dim
    radials = radial[:, None] + other_radial + dim
    k0 = (scores @ other_scores.T) * base**2 + 2 / dim * (base * radials + base - 1)
    return k0 / (growth[:, None] * other_growth)


def _damped(side: Side) -> tuple[Float[Array, " n"], Float[Array, "n dim"], Float[Array, " n"]]:
    """1 / w(u), the scores of the density times w(u), and their products with u."""
    u, dim = side.u, side.u.shape[1]
    growth = 1 + jnp.sum(u**2, axis=1) / (_REACH * dim)
    # The damping enters as if it were a factor of the density.
    scores = side.scores - 2 * u / (_REACH * dim * growth[:, None])
    return growth, scores, jnp.sum(scores * u, axis=1)


def _look(
    g: Float[np.ndarray, " n"], log_weights: Float[np.ndarray, " n"], families: Int[np.ndarray, " n"]
) -> tuple[float, float]:
    """The ratio and its standard errors on one side."""
    found = moments(g, log_weights, families)
    if not found.sd > 0 or not found.mean_error > 0:
        return 0.0, 0.0
    return float(found.mean / found.sd), float(found.mean / found.mean_error)
