"""Stein variational gradient descent (Liu and Wang 2016): x_i <- x_i + delta phi(x_i).

    phi(x) = 1/N sum_j [ k(x_j, x) grad ln p1(x_j) + grad_{x_j} k(x_j, x) ],      k(x, y) = exp(-|x - y|^2 / h).

The median heuristic takes h = median(|x_i - x_j|)^2 / ln N. The kernel is computed in blocks of rows, so that memory
grows with N and not with N^2. (The published experiments have half of the kernel's gradient; here it is whole.)
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from pgps import _checks
from pgps.density import Problem, evaluate_target
from pgps.methods.base import AbstractMethod, Row, State, Trace, begin_on_target, estimation_key, proceed

# Entries of the kernel that exist at once.
_MOST_ENTRIES = 2**21
# The median is taken over the pairs of this many particles, which fixes it to about a percent.
_MEDIAN_PARTICLES = 256
# Halvings that find a float32 between 0 and the largest distance.
_NUM_HALVINGS = 26


class SVGD(AbstractMethod):
    """Stein variational gradient descent with a Gaussian (RBF) kernel, started from the initial law.

    Args:
        step_size: The step size delta.
        num_steps: The number of steps.
        bandwidth: The kernel's h; None takes the median heuristic anew at every step.
    """

    step_size: float = 1e-2
    num_steps: int = 1000
    bandwidth: float | None = None

    def __check_init__(self):
        _checks.positive("step_size", self.step_size)
        _checks.whole("num_steps", self.num_steps, at_least=1)
        if self.bandwidth is not None:
            _checks.positive("bandwidth", self.bandwidth)

    @property
    def step_limit(self) -> int:
        """The number of steps."""
        return self.num_steps

    def init(self, key: Array, problem: Problem, num_particles: int) -> State:
        """Particles from the initial law."""
        return begin_on_target(key, problem, num_particles, stochastic=True)

    def step(self, key: Array, state: State, problem: Problem) -> tuple[State, Row]:
        """One step along phi; the clock shows the share of the steps that are done."""
        population = state.population
        bandwidth = median_bandwidth(population.particles) if self.bandwidth is None else self.bandwidth
        velocity = stein_direction(population.particles, population.score, bandwidth)
        particles = population.particles + self.step_size * velocity
        state = proceed(state, evaluate_target(particles, problem, estimation_key(key)), self.num_steps)
        row = {
            "t": state.clock.t,
            "bandwidth": jnp.asarray(bandwidth),
            "field_norm": jnp.mean(jnp.linalg.norm(velocity, axis=-1)),
        }
        return state, row

    def doubts(self, trace: Trace) -> list[str]:
        """None: nothing in the trace tells how far the particles' law is from the target."""
        return []


def stein_direction(
    particles: Float[Array, "n dim"], score: Float[Array, "n dim"], bandwidth: Scalar | float
) -> Float[Array, "n dim"]:
    """phi at every particle."""
    num, dim = particles.shape
    # Distances do not change, but they lose less to rounding near the origin.
    centered = particles - jnp.mean(particles, axis=0)
    squares = jnp.sum(centered**2, axis=-1)
    # sum_j k_ij (s_j - 2/h x_j) + 2/h x_i sum_j k_ij: one product with the kernel.
    columns = jnp.concatenate([score - 2 / bandwidth * centered, jnp.ones((num, 1), score.dtype)], axis=1)

    def rows(block: tuple[Array, Array]) -> Float[Array, "rows dim"]:
        x, square = block
        distances = jnp.maximum(square[:, None] + squares - 2 * x @ centered.T, 0.0)
        sums = jnp.exp(-distances / bandwidth) @ columns
        return (sums[:, :dim] + 2 / bandwidth * x * sums[:, dim:]) / num

    block = max(1, min(num, _MOST_ENTRIES // num))
    return jax.lax.map(lambda x: rows((x[0][None], x[1][None]))[0], (centered, squares), batch_size=block)


def median_bandwidth(particles: Float[Array, "n dim"]) -> Scalar:
    """The median heuristic, median(|x_i - x_j|)^2 / ln N over pairs i < j, for N = 2 over ln 3."""
    num = len(particles)
    # Particles are exchangeable, so that any of them will do.
    some = particles[: min(num, _MEDIAN_PARTICLES)]
    squares = squared_distances(some)[jnp.triu_indices(len(some), 1)]
    median = _median(squares)
    # Particles in one place have no scale; any will do, since the kernel is 1 there.
    return jnp.where(median > 0, median, 1.0) / math.log(max(num, 3))


def squared_distances(particles: Float[Array, "n dim"]) -> Float[Array, "n n"]:
    """|x_i - x_j|^2 by one product of matrices; 0 for pairs that are as close as rounding can tell."""
    centered = particles - jnp.mean(particles, axis=0)
    sums = jnp.sum(centered**2, axis=-1)
    sums = sums[:, None] + sums
    distances = sums - 2 * centered @ centered.T
    return jnp.where(distances > 8 * jnp.finfo(particles.dtype).eps * sums, distances, 0.0)


def _median(values: Float[Array, " n"]) -> Scalar:
    """The lower median of non-negative values, by bisection: sorting takes far longer on a CPU."""
    half = (values.shape[0] + 1) // 2

    def halve(_: Int[Array, ""], bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = 0.5 * (low + high)
        below = jnp.sum(values <= middle) >= half
        return jnp.where(below, low, middle), jnp.where(below, middle, high)

    _, high = jax.lax.fori_loop(0, _NUM_HALVINGS, halve, (jnp.zeros((), values.dtype), jnp.max(values)))
    return high
