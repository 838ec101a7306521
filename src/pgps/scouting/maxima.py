"""Maxima of a density that ascents from its initial law find, each with a Gaussian of its curvature.

Of many draws, every other one spread about the law's mean, those are starts whose density is higher than that of their
neighbours (Rinnooy Kan and Timmer 1987): a high and narrow mode then has a start of its own if any draw is near it.
Half of the spread ones are spread ever farther, and have some of the starts for themselves: the density is low there,
but a mode that the law has missed by far may be at the end of an ascent.

The curvature is that over half a standard deviation to each side, by differences of gradients along the columns of a
first guess: it is what the density has over the width of its mode, and needs no second derivatives of the user's code.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgps.density import Problem
from pgps.scouting.ascents import Ascent, ascend

# In standard deviations: how near an ascent must have come to the top, and how far to look for its curvature.
_NEAREST = 0.1
_REACH = 0.5
_NEIGHBOURS = 10
_BATCH = 8
# Draws whose neighbours are sought at once: what that takes stays near the processor.
_AT_ONCE = 80
# The farthest draws are spread by this power of the others' spread, and have this share of the starts.
_FARTHEST_POWER = 3.0
_SHARE_OF_FAR = 8


class Search(NamedTuple):
    """How much work to put into a search: see `Scouting`."""

    num_draws: int
    num_starts: int
    num_steps: int
    spread: float
    most: int


class Maxima(NamedTuple):
    """Distinct maxima, and what it cost to find them."""

    centers: Float[np.ndarray, "k dim"]
    roots: Float[np.ndarray, "k dim dim"]
    """Square roots of covariances: x = center + root z has the mode's width for |z| of about 1."""
    num_values: int
    num_gradients: int

    def coordinates(self, index: int, x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """Points in units of one maximum's width, seen from there."""
        return np.linalg.solve(self.roots[index], (x - self.centers[index]).T).T


def find_maxima(problem: Problem, key: Array, search: Search, radius: float) -> Maxima:
    """Search; maxima closer than `radius`, in units of the higher one's width, are one."""
    ascents, num_steps = _ascents(problem, key, search)
    distinct = _distinct(ascents, search.most, radius)
    dim, dtype, kept = problem.structure.dim, problem.structure.dtype, []
    for first in range(0, len(distinct), _BATCH):
        batch = distinct[first : first + _BATCH]
        centers, guesses = (np.stack(arrays) for arrays in zip(*(batch * _BATCH)[:_BATCH], strict=True))
        roots = np.asarray(_curvatures(problem, jnp.asarray(centers), jnp.asarray(guesses)))
        kept += [(centers[i], roots[i]) for i in range(len(batch)) if np.all(np.isfinite(roots[i]))]
    centers, roots = np.reshape([x for x, _ in kept], (-1, dim)), np.reshape([root for _, root in kept], (-1, dim, dim))
    num_gradients = search.num_starts * int(num_steps) + gradients_of_curvatures(len(distinct), dim)
    return Maxima(centers.astype(dtype), roots.astype(dtype), search.num_draws, num_gradients)


def gradients_of_curvatures(num_maxima: int, dim: int) -> int:
    """The gradient calls that it takes to find the curvature at so many maxima, of which some are copies to fill up."""
    return 2 * dim * _BATCH * math.ceil(num_maxima / _BATCH)


@eqx.filter_jit
def _ascents(problem: Problem, key: Array, search: Search) -> tuple[Ascent, Int[Array, ""]]:
    """Where ascents from the best draws end, and the gradient calls of each."""
    draws = problem.draw(key, search.num_draws)
    scale = jnp.maximum(jnp.std(draws[::2], axis=0), jnp.finfo(draws.dtype).tiny)
    number = np.arange(len(draws))
    is_far = number % 4 == 3
    powers = np.where(number % 2 == 0, 0.0, np.where(is_far, np.linspace(1, _FARTHEST_POWER, len(number)), 1.0))
    draws = problem.center + (search.spread**powers).astype(draws.dtype)[:, None] * (draws - problem.center)
    values = problem.spread.map(problem.log_target, draws)
    starts = _starts((draws - problem.center) / scale, values, is_far, search.num_starts)
    return ascend(problem.log_target, draws[starts], scale, search.num_steps)


def _starts(
    x: Float[Array, "n dim"], values: Float[Array, " n"], is_far: Bool[np.ndarray, " n"], num: int
) -> Int[Array, " num"]:
    """The indices of `num` draws to start from: first those above their neighbours, the highest before the others."""
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    sizes = jnp.sum(x**2, axis=1)

    def are_peaks(some: tuple[Float[Array, "k dim"], Float[Array, " k"]]) -> Bool[Array, " k"]:
        """Whether the neighbours, the draw among them, are nearer than any draw that is higher."""
        places, heights = some
        # A column for each draw: sums along columns are sums of whole vectors.
        distances = sizes[:, None] - 2 * x @ places.T
        to_higher = jnp.min(jnp.where(values[:, None] > heights, distances, jnp.inf), axis=0)
        return jnp.sum(distances < to_higher, axis=0) >= _NEIGHBOURS

    # The first ones come again, to fill the last batch.
    rows = np.arange(math.ceil(len(x) / _AT_ONCE) * _AT_ONCE).reshape(-1, _AT_ONCE) % len(x)
    peaks = jax.lax.map(are_peaks, (x[rows], values[rows])).ravel()[: len(x)]
    num_far = num // _SHARE_OF_FAR
    near, far = (jnp.lexsort((-values, ~peaks, others)) for others in (is_far, ~is_far))
    return jnp.concatenate([near[: num - num_far], far[:num_far]])


def _distinct(ascents: Ascent, most: int, radius: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """The highest maxima that ascents have reached, and a square root of the covariance at each."""
    x, values, gradients, covariances, _ = (np.asarray(array) for array in ascents)
    squares = np.einsum("ni,nij,nj->n", gradients, covariances, gradients)
    reached = np.isfinite(values) & (squares < _NEAREST**2)
    left = [i for i in np.argsort(-values, kind="stable") if reached[i]]
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while left and len(found) < most:
        highest, *left = left
        if (root := _root(covariances[highest])) is not None:
            found.append((x[highest], root))
            offsets = np.linalg.solve(root, (x[left] - x[highest]).T)
            left = [i for i, is_apart in zip(left, np.linalg.norm(offsets, axis=0) > radius, strict=True) if is_apart]
    return found


def _root(covariance: np.ndarray) -> np.ndarray | None:
    if not np.all(np.isfinite(covariance)):
        return None
    values, vectors = np.linalg.eigh(covariance.astype(float))
    return None if values[0] <= 1e-12 * values[-1] else (vectors * np.sqrt(values)).astype(covariance.dtype)


@eqx.filter_jit
def _curvatures(
    problem: Problem, centers: Float[Array, "k dim"], guesses: Float[Array, "k dim dim"]
) -> Float[Array, "k dim dim"]:
    """A square root of the inverse curvature at each maximum; nan where there is none."""

    def one(center: Array, guess: Array) -> Array:
        sides = center + _REACH * jnp.concatenate([guess.T, -guess.T])
        ahead, behind = jnp.split(jax.vmap(jax.grad(problem.log_target))(sides), 2)
        curvature = (behind - ahead) @ guess / (2 * _REACH)
        values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
        # A Gaussian has 1 here. What is flat beyond measure is no maximum with a mass of its own.
        return guess @ (vectors * jnp.where(values > 1e-3, 1 / jnp.sqrt(values), jnp.nan))

    return jax.vmap(one)(centers, guesses)


def log_masses(problem: Problem, maxima: Maxima) -> Float[np.ndarray, " k"]:
    """The logarithm of the mass that a Gaussian of each maximum's height and width has."""
    values = np.asarray(_values(problem, jnp.asarray(maxima.centers)))
    return values + maxima.centers.shape[1] / 2 * np.log(2 * np.pi) + np.linalg.slogdet(maxima.roots)[1]


@eqx.filter_jit
def _values(problem: Problem, x: Float[Array, "n dim"]) -> Float[Array, " n"]:
    return jax.vmap(problem.log_target)(x)
