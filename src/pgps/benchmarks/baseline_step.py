"""`pgps bench baseline-step`: what one step of each baseline costs, next to its floor.

The target is the eight-dimensional mixture of Figure 4. The floor is what a step cannot do without: for Langevin
dynamics and MALA one gradient call per particle, for SVGD that and one N x N Gaussian kernel times the scores. Steps
and floors run in the same way: many in one compiled loop, where each depends on the last.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pgps import methods, storage, targets
from pgps.benchmarks.timing import Steps, environment, milliseconds, write
from pgps.density import Problem, evaluate_target


class Preset(NamedTuple):
    """How much is measured: particles, and the least duration of one measurement in seconds."""

    num_particles: int
    seconds: float


PRESETS = {"full": Preset(1000, 0.1), "smoke": Preset(50, 0.005)}
METHODS: dict[str, methods.AbstractMethod] = {
    "langevin": methods.Langevin(1e-4, 10**9),
    "mala": methods.MALA(1e-3, 10**9),
    "svgd": methods.SVGD(1e-4, 10**9),
}


def run(out: Path | None, quiet: bool, repeats: int = 15, preset: Preset = PRESETS["full"]) -> dict[str, Any]:
    """Measure, and write `result.json` into the folder `out` if one is given.

    Args:
        out: A new or empty folder, or None to write nothing.
        quiet: Whether to say nothing about the progress.
        repeats: How often each step is measured, in turns with its floor; the record holds medians,
            and the ratio of the least two, which is what an undisturbed machine would show.
        preset: How much is measured.
    """
    if out is not None:
        storage.check_free(out)
    problem = Problem.of(*targets.weight_recovery(jax.random.key(0)))
    rows = {}
    for name, method in METHODS.items():
        if not quiet:
            print(f"{name} at N = {preset.num_particles}, D = {problem.structure.dim}", flush=True)
        floor = _kernel_floor if name == "svgd" else _gradient_floor
        steps = _method_steps(method, problem, preset.num_particles)
        floors = _floor_steps(floor, problem, preset.num_particles)
        costs, least = milliseconds([steps, floors], repeats, preset.seconds)
        ratios = [cost / low for cost, low in zip(costs, least, strict=True)]
        undisturbed = min(costs) / min(least)
        rows[name] = {"step": median(costs), "floor": median(least), "ratio": median(ratios), "of_least": undisturbed}
    record = {
        "command": "pgps bench baseline-step",
        "milliseconds": rows,
        "repeats": repeats,
        "preset": preset._asdict(),
        **environment(),
    }
    if out is not None:
        write(out, record)
    return record


def format_table(record: dict[str, Any]) -> str:
    """The record as a text table."""
    lines = [f"{'method':<10} {'step, ms':>9} {'floor, ms':>9} {'ratio':>7} {'of least':>9}"]
    for name, row in record["milliseconds"].items():
        lines.append(f"{name:<10} {row['step']:9.4f} {row['floor']:9.4f} {row['ratio']:7.2f} {row['of_least']:9.2f}")
    return "\n".join(lines)


def _method_steps(method: methods.AbstractMethod, problem: Problem, num_particles: int) -> Steps:
    state = eqx.filter_jit(lambda key: method.init(key, problem, num_particles))(jax.random.key(0))
    arrays, rest = eqx.partition(jax.tree.map(jnp.asarray, state), eqx.is_array)

    @jax.jit
    def many(count: Array, arrays: Any) -> Array:
        def step(_: Array, arrays: Any) -> Any:
            state = eqx.combine(arrays, rest)
            key = jax.random.fold_in(jax.random.key(1), state.num_steps)
            return eqx.partition(method.step(key, state, problem)[0], eqx.is_array)[0]

        arrays = jax.lax.fori_loop(0, count, step, arrays)
        return jnp.sum(eqx.combine(arrays, rest).population.particles)

    return lambda count: float(many(jnp.asarray(count), arrays))


def _floor_steps(
    floor: Callable[[Float[Array, "n dim"], Problem], Float[Array, "n dim"]], problem: Problem, num_particles: int
) -> Steps:
    particles = problem.draw(jax.random.key(0), num_particles)

    @jax.jit
    def many(count: Array, particles: Array) -> Array:
        def step(_: Array, x: Array) -> Array:
            # Too small a move to matter, but the next call has to wait for this one.
            return x + 1e-12 * floor(x, problem)

        return jnp.sum(jax.lax.fori_loop(0, count, step, particles))

    return lambda count: float(many(jnp.asarray(count), particles))


def _gradient_floor(particles: Float[Array, "n dim"], problem: Problem) -> Float[Array, "n dim"]:
    population = evaluate_target(particles, problem)
    return population.score + population.logdensity[:, None]


def _kernel_floor(particles: Float[Array, "n dim"], problem: Problem) -> Float[Array, "n dim"]:
    squares = jnp.sum(particles**2, axis=-1)
    distances = squares[:, None] + squares - 2 * particles @ particles.T
    return jnp.exp(-distances) @ _gradient_floor(particles, problem)
