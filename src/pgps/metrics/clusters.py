"""Modes of a weighted sample, found without being told how many: peaks of a nearest-neighbour density.

With r_i the distance from particle i to its k-th neighbour and W(i) the weight of the k neighbours,

    ln f_i = ln W(i) - d ln r_i,    var(ln f_i) ~ sum_j W_j^2 / W(i)^2    over the neighbours j (1/k for equal weights).

Every particle climbs to the neighbour of highest density. Where two hills meet, at a saddle s, the lower one, of peak
p, is a mode of its own if ln f_p - ln f_s exceeds `SIGNIFICANCE` standard errors, and part of the higher one otherwise
(persistence: Chazal, Guibas, Oudot and Skraba 2013). Hills that do not meet are modes.

Distances are in units of the width within modes, as far as it can be known before the modes are: the scatter of
differences between near neighbours, taken again and again in the metric that it gives (Art, Gnanadesikan and Kettenring
1982). In that metric the leading principal directions are those that hold modes apart.

A mode's mass is m = sum_i W_i 1_i, with standard error sqrt(sum_e (sum_{i in e} W_i (1_i - m))^2) over families e of
particles with one first ancestor; without ancestors, each particle is a family.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from pgps.metrics.base import AnyArray, families_of, finite_array, normalised_weights

# Standard errors between a peak and its saddle: a thousand particles have some hundred pairs that could pass for both.
SIGNIFICANCE = 4.5
# A smaller mass says little beside its own error; fewer particles than five have no density to speak of.
LEAST_MASS = 0.005
LEAST_PARTICLES = 5

MAX_PARTICLES = 3000  # for the density
MAX_METRIC_PARTICLES = 1000
MAX_METRIC_DIM = 60
MAX_DIM = 10  # beyond, all particles are about equally far from each other


class Modes(NamedTuple):
    """The modes of a sample, those of largest mass first; print it to look at it.

    Attributes:
        masses: The modes' weights, which sum to 1.
        standard_errors: The standard errors of `masses`.
        centers: The modes' weighted means.
        labels: The mode of each particle.
    """

    masses: Float[np.ndarray, " k"]
    standard_errors: Float[np.ndarray, " k"]
    centers: Float[np.ndarray, "k dim"]
    labels: Int[np.ndarray, " n"]

    def __str__(self) -> str:
        rows = [f"{k:>4}{m:>10.4f}{s:>10.4f}" for k, (m, s) in enumerate(zip(*self[:2], strict=True))]
        return "\n".join([f"mode{'mass':>10}{'error':>10}", *rows])


def find_modes(
    particles: Float[AnyArray, "n dim"],
    log_weights: Float[AnyArray, " n"] | None = None,
    ancestors: Int[AnyArray, " n"] | None = None,
) -> Modes:
    """The modes of a weighted sample; particles outside of all clear modes belong to the nearest.

    The same particles have the same modes in any order, up to 3,000; beyond, a part of them, chosen by weight, finds
    the modes. Modes of less than half a percent, or of fewer than some twenty distinct particles, are not seen. A clump
    of near copies of one particle looks like a mode; with `ancestors`, its standard error is about its mass.

    Args:
        particles: The sample.
        log_weights: The particles' log-weights.
        ancestors: The index of each particle's first ancestor, as in `pgps.weights.Weights`.
    """
    points = finite_array("particles", particles, 2)
    weights = normalised_weights(log_weights, len(points))
    families = families_of(ancestors, len(points))
    labels = _cluster(points, weights, families)
    # A mode of the copies that the search sees has mass in the sample too, but for the rounding of a subsample.
    order = np.argsort(-np.bincount(labels, weights), kind="stable")
    labels = np.argsort(order)[labels]
    inside = labels[:, None] == np.arange(len(order))
    masses = weights @ inside
    deviations = np.zeros((families.max() + 1, len(order)))
    np.add.at(deviations, families, weights[:, None] * (inside - masses))
    centers = (inside * weights[:, None]).T @ points / masses[:, None]
    return Modes(masses, np.linalg.norm(deviations, axis=0), centers, labels)


def _cluster(points: np.ndarray, weights: np.ndarray, families: np.ndarray) -> np.ndarray:
    """A label for each particle, from 0 on."""
    scaled = _scaled(points, weights)
    alive = np.flatnonzero(weights > 0)
    # Copies of a particle are one particle of more weight: between copies there is no distance to take a density from.
    _, first, copy = np.unique(scaled[alive], axis=0, return_index=True, return_inverse=True)
    shares = _subsampled(np.bincount(copy.ravel(), weights[alive]), MAX_PARTICLES)
    seen = alive[first[shares > 0]]
    shares = shares[shares > 0]
    if len(seen) < 2 * LEAST_PARTICLES:
        return np.zeros(len(points), int)
    coordinates = _coordinates(scaled, seen, shares)
    roots = _hills(coordinates[seen], shares, families[seen])
    _, hills, counts = np.unique(roots, return_inverse=True, return_counts=True)
    large = (counts >= LEAST_PARTICLES) & (np.bincount(hills, shares) >= LEAST_MASS)
    if np.count_nonzero(large) < 2:
        return np.zeros(len(points), int)
    clear = large[hills]
    nearest = KDTree(coordinates[seen[clear]]).query(coordinates)[1]
    return np.unique(hills[clear][nearest], return_inverse=True)[1]


def _scaled(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Coordinates of mean 0 and variance 1, those that are constant left out."""
    centered = points - weights @ points
    scales = np.sqrt(weights @ centered**2)
    varied = scales > 1e-7 * np.max(np.abs(points), axis=0)
    return centered[:, varied] / scales[varied] if np.any(varied) else np.zeros((len(points), 1))


def _subsampled(weights: np.ndarray, num: int) -> np.ndarray:
    """Weights of which at most `num` are not 0: shares of `num` copies, by systematic resampling with u = 1/2."""
    if np.count_nonzero(weights) <= num:
        return weights
    sums = np.cumsum(weights)
    chosen = np.searchsorted(sums, (np.arange(num) + 0.5) / num * sums[-1], side="right")
    return np.bincount(chosen, minlength=len(weights)) / num


def _coordinates(scaled: np.ndarray, seen: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """All particles in the metric that the particles `seen` have within modes, in at most `MAX_DIM` dimensions."""
    few = _subsampled(shares, MAX_METRIC_PARTICLES)
    x, w = scaled[seen[few > 0]], few[few > 0]
    basis = np.eye(x.shape[1])
    if x.shape[1] > MAX_METRIC_DIM:
        basis = _principal_directions(x, w)
    elif x.shape[1] == 1:
        return scaled
    basis = basis @ _whitening(_scatter(x @ basis, w))
    # In few dimensions neighbours are near in any metric; in many the modes come apart step by step.
    for _ in range(3 if basis.shape[1] <= 6 else 10):
        y = x @ basis
        differences = y[:, None] - y[_neighbours(y, LEAST_PARTICLES)[1]]
        # Each particle counts alike, however far its neighbours are: in a funnel the widest would count alone.
        lengths = np.mean(np.linalg.norm(differences, axis=-1), axis=1)
        differences /= np.maximum(lengths, 1e-300)[:, None, None]
        repeated = np.repeat(w / LEAST_PARTICLES, LEAST_PARTICLES)
        basis = basis @ _whitening(_scatter(differences.reshape(len(repeated), -1), repeated))
    return scaled @ (basis @ _principal_directions(x @ basis, w))


def _scatter(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The second moments of x, the more diagonal the fewer rows there are for as many columns."""
    moments = (x * weights[:, None]).T @ x
    shrinkage = min(1.0, x.shape[1] * float(np.sum(weights**2)))
    return (1 - shrinkage) * moments + shrinkage * np.diag(np.diagonal(moments))


def _whitening(scatter: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(scatter)
    return vectors / np.sqrt(np.maximum(values, 1e-6 * values[-1]))


def _principal_directions(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    centered = (x - weights @ x) * np.sqrt(weights)[:, None]
    return np.linalg.svd(centered, full_matrices=False)[2][:MAX_DIM].T


def _neighbours(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances [n, k] of each row to its k nearest others, in rising order, and their indices [n, k]."""
    if x.shape[1] <= 6:
        distances, indices = map(np.asarray, KDTree(x).query(x, k + 1))
        return distances[:, 1:], indices[:, 1:]
    distances = cdist(x, x)
    np.fill_diagonal(distances, np.inf)
    indices = np.argpartition(distances, k - 1, axis=1)[:, :k]
    distances = np.take_along_axis(distances, indices, axis=1)
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(indices, order, axis=1)


def _amplification(radii: np.ndarray, distances: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
    """How much noisier d ln r is where particles lie along fewer dimensions than elsewhere, as in a funnel's neck.

    The local dimension is 1 / mean_j ln(r_i / r_ij) (Levina and Bickel 2004), averaged over neighbours.
    """
    ratios = np.maximum(distances[:, :-1] / radii[:, None], 1e-9)
    inverse = np.mean(-np.log(ratios), axis=1)[neighbours].mean(axis=1)
    return np.maximum(1.0, inverse / np.median(inverse))


def _hills(x: np.ndarray, weights: np.ndarray, families: np.ndarray) -> np.ndarray:
    """The peak that each row belongs to."""
    n, dim = x.shape
    k = min(max(12, round(0.4 * np.sqrt(n))), n - 1)
    distances, neighbours = _neighbours(x, k)
    masses = weights[neighbours].sum(axis=1)
    radii = np.maximum(distances[:, -1], 1e-9 * np.median(distances[:, -1]) + 1e-300)
    log_density = np.log(masses) - dim * np.log(radii)
    # Neighbours of one family came from one particle: they are no independent witnesses of a density.
    relatives = families[neighbours][:, :, None] == families[neighbours][:, None, :]
    variances = np.einsum("ij,ijk,ik->i", weights[neighbours], relatives, weights[neighbours]) / masses**2
    variances *= _amplification(radii, distances, neighbours) ** 2
    rows = np.repeat(np.arange(n), k)
    graph = sparse.csr_array((np.ones(n * k), (rows, neighbours.ravel())), shape=(n, n))
    graph = sparse.csr_array(graph + graph.T)
    order = np.argsort(-log_density, kind="stable")
    return _merged(order, log_density, variances, graph)


def _merged(
    order: np.ndarray, log_density: np.ndarray, variances: np.ndarray, graph: sparse.csr_array
) -> Int[np.ndarray, " n"]:
    """Flood from the peaks down, `order` by `order`, and join hills whose saddle is not clearly lower."""
    rank = np.argsort(order)
    parents = list(range(len(order)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    for i in order:
        near = graph.indices[graph.indptr[i] : graph.indptr[i + 1]]
        higher = near[rank[near] < rank[i]]
        if higher.size == 0:
            continue
        parents[i] = root(higher[np.argmin(rank[higher])])
        for peak in {root(j) for j in higher}:
            high, low = sorted((root(peak), root(i)), key=rank.__getitem__)
            depth = log_density[low] - log_density[i]
            if depth < SIGNIFICANCE * np.sqrt(variances[low] + variances[i]):
                parents[low] = high
    return np.array([root(i) for i in range(len(order))])
