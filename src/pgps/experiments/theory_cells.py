"""What is measured of section 4: distances and the bound of Theorem 4.2, errors and losses of Proposition 4.4.

Theorem 4.2, with K1 the Lipschitz constant of the field in x, K2 that in t, and K3 its largest size:

    W2 <= delta sqrt(exp(1 + 2 K1)) + sqrt(h) sqrt(C (exp(1 + K1^2) - 1) / (1 + K1^2))
    C  = K2^2/2 + 17/2 K1^2 K3^2 + 5 K1 K2 K3

The dynamics are x <- x + h phi(x); section 4 prints them without h. A field of error delta is the exact one plus
delta * g, with E|g|^2 = 1 under p_t at every t.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from pgps import fields, paths, trainers
from pgps.density import Population, Problem
from pgps.experiments.base import Record
from pgps.experiments.exact_fields import AffineField, GaussianPath, Instant, MixturePath, poincare
from pgps.initial import Normal
from pgps.targets import GaussianMixture

REACH = 5.0
"""How many standard deviations of a Gaussian count as visited: all but 6e-7 of its mass."""

WAVENUMBER = 3.0
NUM_TIMES = 257
FREQUENCIES = (0, 1, 2, 4, 8)
SIZES = (0.01, 0.03, 0.1, 0.3, 1.0)
FIELD = fields.MLP(32, activation=jnp.tanh)
TRAINER = trainers.Gradient(1e-2, threshold=0.0)
NUM_TRAINED_ON = 500


class Constants(NamedTuple):
    """The constants of Assumption 4.1."""

    K1: float
    K2: float
    K3: float

    @classmethod
    def of(cls, values: np.ndarray, slopes: np.ndarray) -> "Constants":
        """Read them off.

        Args:
            values: phi^theta at times spread evenly over [0, 1] (first axis) and points, with coordinates last.
            slopes: The slopes of phi^theta and of phi, of which K1 has to bound both.
        """
        changes = np.linalg.norm(np.diff(values, axis=0), axis=-1) * (len(values) - 1)
        sizes = np.linalg.norm(values, axis=-1)
        return cls(float(np.max(np.abs(slopes))), float(np.max(changes)), float(np.max(sizes)))

    def bound(self, delta: float, h: float) -> float:
        """The bound of Theorem 4.2; infinite where it is beyond floating point."""
        K1, K2, K3 = self
        C = K2**2 / 2 + 17 / 2 * K1**2 * K3**2 + 5 * K1 * K2 * K3
        with np.errstate(over="ignore"):
            growth = np.expm1(1 + K1**2) / (1 + K1**2)
            error = delta * np.exp(0.5 + K1) if delta > 0 else 0.0
            return float(error + np.sqrt(h * C * growth))


class Run(NamedTuple):
    """One flow: the kind of error, its size, and the number of steps."""

    kind: str
    delta: float
    num_steps: int

    def row(self, w2: float, constants: Constants) -> dict[str, Any]:
        """What was measured, as plain data."""
        h = 1 / self.num_steps
        return {
            **self._asdict(),
            "h": h,
            "w2": w2,
            "bound": constants.bound(self.delta, h),
            **constants._asdict(),
        }


def runs(kinds: Sequence[str], steps: Sequence[int], deltas: Sequence[float], fine: int) -> list[Run]:
    """The exact field with every step size, then every kind and size of error with a fine step."""
    return [Run("none", 0.0, n) for n in steps] + [Run(k, d, fine) for k, d in itertools.product(kinds, deltas)]


def perturb(path: GaussianPath, t: float, run: Run) -> AffineField:
    """A Gaussian's field plus an error that is affine: a shift, or a stretch about the mean."""
    field, (mean, std) = path.field(t), path.moments(t)
    size = run.delta / np.sqrt(len(mean))
    if run.kind == "stretch":
        return AffineField(field.slope + size / std, field.offset - size * mean / std)
    return AffineField(field.slope, field.offset + size)


def euler(path: GaussianPath, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations after each step (first axis): an affine map keeps a Gaussian Gaussian."""
    means, stds = ([np.array(first)] for first in (path.initial_mean, path.initial_std))
    h = 1 / run.num_steps
    for n in range(run.num_steps):
        field = perturb(path, n * h, run)
        means.append(means[-1] + h * field(means[-1]))
        stds.append(np.abs(1 + h * field.slope) * stds[-1])
    return np.stack(means), np.stack(stds)


def gaussian_theorem(path: GaussianPath, planned: Sequence[Run]) -> Record:
    """Theorem 4.2 between Gaussians: distances in closed form."""
    flows = [euler(path, run) for run in planned]
    times = np.linspace(0, 1, NUM_TIMES)
    exact = tuple(np.stack(moment) for moment in zip(*[path.moments(t) for t in times], strict=True))
    low = np.min(np.concatenate([mean - REACH * std for mean, std in [*flows, exact]]), axis=0)
    high = np.max(np.concatenate([mean + REACH * std for mean, std in [*flows, exact]]), axis=0)
    # The size of an affine map is convex: it is largest in a corner.
    corners = np.array(list(itertools.product(*zip(low, high, strict=True))))

    rows = []
    for run, (means, stds) in zip(planned, flows, strict=True):
        gaps = means[-1] - np.array(path.target_mean), stds[-1] - np.array(path.target_std)
        felt = [perturb(path, t, run) for t in times]
        slopes = np.stack([field.slope for field in felt] + [path.field(t).slope for t in times])
        constants = Constants.of(np.stack([field(corners) for field in felt]), slopes)
        rows.append(run.row(float(np.linalg.norm(gaps)), constants))
    return Record(rows, {"low": low, "high": high})


def wave(instant: Instant, x: np.ndarray, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """An error's values and slopes in one dimension: a shift, or an oscillation of unit mean square."""
    if run.kind != "wave":
        return np.full_like(x, run.delta), np.zeros_like(x)
    size = run.delta / np.sqrt(instant.mean(np.sin(WAVENUMBER * instant.x) ** 2))
    return size * np.sin(WAVENUMBER * x), size * WAVENUMBER * np.cos(WAVENUMBER * x)


def mixture_theorem(path: MixturePath, planned: Sequence[Run], num_particles: int) -> Record:
    """Theorem 4.2 in one dimension: quantiles of p0 follow the flow and meet those of p1 one by one."""
    ends, limits = {}, []
    for num_steps in sorted({run.num_steps for run in planned}):
        group = [run for run in planned if run.num_steps == num_steps]
        particles = np.tile(path.initial_quantiles(num_particles), (len(group), 1))
        for n in range(num_steps):
            limits.append((particles.min(), particles.max()))
            instant = path.at(n / num_steps)
            errors = [wave(instant, x, run)[0] for x, run in zip(particles, group, strict=True)]
            particles = particles + (instant(particles) + np.stack(errors)) / num_steps
        limits.append((particles.min(), particles.max()))
        ends |= dict(zip(group, particles, strict=True))
    low, high = float(np.min(limits)), float(np.max(limits))

    truth = path.target_quantiles(num_particles)
    instants = [path.at(t) for t in np.linspace(0, 1, NUM_TIMES)]
    x, spacing = instants[0].x, instants[0].spacing
    visited = (x > low - spacing) & (x < high + spacing)
    exact = np.stack([instant.slope for instant in instants])
    rows = []
    for run in planned:
        felt = [wave(instant, instant.x, run) for instant in instants]
        values = np.stack([instant.velocity + g for instant, (g, _) in zip(instants, felt, strict=True)])
        slopes = exact + np.stack([slope for _, slope in felt])
        constants = Constants.of(values[:, visited, None], np.concatenate([exact, slopes])[:, visited])
        w2 = np.sqrt(np.mean((np.sort(ends[run]) - truth) ** 2))
        rows.append(run.row(float(w2), constants))
    return Record(rows, {"low": np.array([low]), "high": np.array([high])})


def proposition(
    path: MixturePath, times: Sequence[float], training_steps: Sequence[int], seeds: Sequence[int]
) -> Record:
    """Proposition 4.4: the error and the loss of fields near the exact one, and of networks in training."""
    rows = []
    for t in times:
        instant = path.at(t)
        K, worst = path.poincare(t)
        if len(path.means) == 1:
            K = 1 / ((1 - t) / path.std**2 + t / path.stds[0] ** 2)
        shapes = {f"cos {k:g}x": np.cos(k * instant.x) for k in FREQUENCIES} | {"worst": worst}
        for (kind, shape), size in itertools.product(shapes.items(), SIZES):
            velocity = instant.velocity + size * shape
            measured = {"error": instant.error(velocity), "loss": instant.loss(velocity, instant.derivative(velocity))}
            rows.append({"t": t, "K": K, "kind": kind, "size": size, **measured})
        for seed in seeds:
            rows += [{"t": t, "K": K, "kind": "trained", **row} for row in _train(path, t, training_steps, seed)]
    return Record(rows)


def _train(path: MixturePath, t: float, training_steps: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """A network, trained on quantiles of p_t, and measured under p_t itself on the way."""
    instant, key, now = path.at(t), jax.random.key(seed), jnp.asarray(t)
    weights, means, stds = (jnp.asarray(end) for end in (path.weights, path.means, path.stds))
    problem = Problem.of(GaussianMixture(weights, means[:, None], stds), Normal(0.0, path.std, shape=(1,)))
    particles, grid = (jnp.asarray(x)[:, None] for x in (instant.quantiles(NUM_TRAINED_ON), instant.x))
    population, params, memory = _start(key, now, particles, problem)

    rows, done = [], 0
    for num in training_steps:
        if num > done:
            # An array, so that one program serves every number of steps.
            trainer = eqx.tree_at(lambda trainer: trainer.max_steps, TRAINER, jnp.asarray(num - done))
            params, memory = _fit(trainer, key, now, population, params, memory)
            done = num
        velocity, slope = (np.asarray(values, float) for values in _evaluate(params, now, grid, key))
        measured = {"error": instant.error(velocity[:, 0]), "loss": instant.loss(velocity[:, 0], slope)}
        rows.append({"training_steps": num, "seed": seed, **measured})
    return rows


@eqx.filter_jit
def _start(key: Array, t: Scalar, particles: Array, problem: Problem) -> tuple[Population, PyTree, PyTree]:
    params = FIELD.init(key, 1, particles.dtype)
    return paths.evaluate(paths.Geometric(), t, particles, problem), params, TRAINER.init(params)


@eqx.filter_jit
def _fit(
    trainer: trainers.Gradient, key: Array, t: Scalar, population: Population, params: PyTree, memory: PyTree
) -> tuple[PyTree, PyTree]:
    return trainer.fit(key, t, population, FIELD, params, memory)[:2]


@eqx.filter_jit
def _evaluate(params: PyTree, t: Scalar, x: Array, key: Array) -> tuple[Array, Array]:
    return FIELD.flows(params, t, x, key)


def constants_apart(std: float, distances: Sequence[float], radii: Sequence[float]) -> Record:
    """How K1 and K grow as two modes go apart, and K for Student's t on growing intervals: it has no bound there."""
    rows = []
    for distance in distances:
        path = MixturePath(1.0, (0.4, 0.6), (-distance / 2, distance / 2), (std, std))
        instants = [path.at(t) for t in np.linspace(0, 1, 65)]
        visited = np.abs(instants[0].x) < path.initial_quantiles(4000)[-1]
        values, slopes = (np.stack([getattr(i, name)[visited] for i in instants]) for name in ("velocity", "slope"))
        constants = Constants.of(values[..., None], slopes)
        rows.append({"distance": distance, "K": path.poincare(1.0)[0], **constants._asdict()})
    for radius in radii:
        K, *_ = poincare(lambda x: -2 * np.log1p(x**2 / 3), radius, int(100 * radius))
        rows.append({"radius": radius, "K": K})
    return Record(rows)
