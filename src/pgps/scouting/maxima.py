"""Maxima of a density that ascents from its initial law find, each with a Gaussian of its curvature.

Of many draws, every other one spread about the law's mean, those are starts whose density is higher than that of their
neighbours (Rinnooy Kan and Timmer 1987): a high and narrow mode then has a start of its own if any draw is near it.

The curvature is that over half a standard deviation to each side, by differences of gradients along the columns of a
first guess: it is what the density has over the width of its mode, and needs no second derivatives of the user's code.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.spatial import KDTree

from pgps.density import Problem
from pgps.scouting.ascents import Ascent, ascend

# In standard deviations: how near an ascent must have come to the top, and how far to look for its curvature.
_NEAREST = 0.1
_REACH = 0.5
_NEIGHBOURS = 10
_BATCH = 8


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
    has_edge: bool
    """Whether the density was 0 at any of the draws."""

    def coordinates(self, index: int, x: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
        """Points in units of one maximum's width, seen from there."""
        return np.linalg.solve(self.roots[index], (x - self.centers[index]).T).T


def find_maxima(problem: Problem, key: Array, search: Search, radius: float) -> Maxima:
    """Search; maxima closer than `radius`, in units of the higher one's width, are one."""
    draws, values = _draw(problem, key, search.num_draws, search.spread)
    scale = jnp.maximum(jnp.std(draws[::2], axis=0), jnp.finfo(draws.dtype).tiny)
    starts = _starts(np.asarray(draws / scale), np.asarray(values), search.num_starts)
    ascents = _ascend(problem, draws[starts], scale, search.num_steps)
    distinct = _distinct(ascents, search.most, radius)
    dim, kept = problem.structure.dim, []
    for first in range(0, len(distinct), _BATCH):
        batch = distinct[first : first + _BATCH]
        centers, guesses = (np.stack(arrays) for arrays in zip(*(batch * _BATCH)[:_BATCH], strict=True))
        roots = np.asarray(_curvatures(problem, jnp.asarray(centers), jnp.asarray(guesses)))
        kept += [(centers[i], roots[i]) for i in range(len(batch)) if np.all(np.isfinite(roots[i]))]
    centers, roots = np.reshape([x for x, _ in kept], (-1, dim)), np.reshape([root for _, root in kept], (-1, dim, dim))
    num_gradients = search.num_starts * search.num_steps + gradients_of_curvatures(len(distinct), dim)
    has_edge = bool(jnp.any(values == -jnp.inf))
    return Maxima(centers.astype(draws.dtype), roots.astype(draws.dtype), search.num_draws, num_gradients, has_edge)


def gradients_of_curvatures(num_maxima: int, dim: int) -> int:
    """The gradient calls that it takes to find the curvature at so many maxima, of which some are copies to fill up."""
    return 2 * dim * _BATCH * math.ceil(num_maxima / _BATCH)


@eqx.filter_jit
def _draw(problem: Problem, key: Array, num: int, spread: float) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
    draws = problem.draw(key, num)
    wider = problem.center + spread * (draws - problem.center)
    draws = jnp.where((jnp.arange(num) % 2 == 0)[:, None], draws, wider)
    return draws, problem.spread.map(problem.log_target, draws)


def _starts(x: Float[np.ndarray, "n dim"], values: Float[np.ndarray, " n"], num: int) -> np.ndarray:
    """The indices of `num` draws to start from: first those above their neighbours, the highest before the others."""
    values = np.where(np.isfinite(values), values, -np.inf)
    _, neighbours = KDTree(x).query(x, _NEIGHBOURS)
    is_peak = values >= values[neighbours].max(axis=1)
    return np.lexsort((-values, ~is_peak))[:num]


@eqx.filter_jit
def _ascend(problem: Problem, starts: Float[Array, "n dim"], scale: Float[Array, " dim"], num_steps: int) -> Ascent:
    return ascend(problem.log_target, starts, scale, num_steps)


def _distinct(ascents: Ascent, most: int, radius: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """The highest maxima that ascents have reached, and a square root of the covariance at each."""
    x, values, gradients, covariances, _ = (np.asarray(array) for array in ascents)
    squares = np.einsum("ni,nij,nj->n", gradients, covariances, gradients)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for i in np.argsort(-values, kind="stable"):
        if not np.isfinite(values[i]) or not squares[i] < _NEAREST**2 or len(found) == most:
            continue
        root = _root(covariances[i])
        if root is None:
            continue
        if all(np.linalg.norm(np.linalg.solve(other, x[i] - center)) > radius for center, other in found):
            found.append((x[i], root))
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
