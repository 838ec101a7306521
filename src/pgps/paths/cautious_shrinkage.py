"""Eq. 5 where shrinking the target is safe, and the geometric path where it is not.

A shrunk target is evaluated far out, at x / beta. One with Gaussian tails changes 1 / beta^2 times as fast there, which
short steps can follow. One that grows exponentially, as a model with a logarithmic scale does, explodes. So before the
first step the spread of d/dt ln p_t over the particles is compared for both paths. Where the initial law is made to
cover the target there is nothing to find beyond it, and the path is the geometric one; so it is where either has an
edge, since a shrunk box holds few particles, and one that grows holds none where it is new.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Scalar

from pgps.density import Evaluations, Problem
from pgps.paths.log_weighted_shrinkage import LogWeightedShrinkage

# Shrinking is safe if the time derivative spreads by less than this many times 1 / beta^2.
_LARGEST_GROWTH = 3.0


class CautiousShrinkage(LogWeightedShrinkage):
    """The paper's path (Eq. 5), or the geometric one (alpha = 0, beta = 1) if that would change far more slowly.

    Args:
        alpha: How far the initial law is spread, in [0, 1].
        beta: How far the target is shrunk at first, in (0, 1]; 1 is not at all.
        center: The fixed point c of both: a number, or a pytree like a particle. None is the initial law's mean.
    """

    def choose(
        self, particles: Float[Array, "n dim"], problem: Problem, has_edge: Bool[Array, ""]
    ) -> tuple["CautiousShrinkage", Evaluations]:
        """This path, or the geometric one: two calls of the log-density at each particle."""
        dtype = particles.dtype
        geometric = self._with(jnp.zeros((), dtype), jnp.ones((), dtype))
        if problem.initial.covers:
            return geometric, Evaluations(values=0)
        # A loop over both paths: the density is compiled once then.
        alphas, betas = jnp.asarray([self.alpha, 0.0], dtype), jnp.asarray([self.beta, 1.0], dtype)
        rates, geometric_rates = jax.lax.map(
            lambda own: self._with(*own)._first_rates(particles, problem), (alphas, betas)
        )
        growth = _deviation(rates) / _deviation(geometric_rates)
        # Not "if it grows too much", which nan would not do.
        safe = (growth * self.beta**2 <= _LARGEST_GROWTH) & ~has_edge & jnp.all(rates != -jnp.inf)
        chosen = self._with(jnp.where(safe, self.alpha, geometric.alpha), jnp.where(safe, self.beta, geometric.beta))
        return chosen, Evaluations(values=2)

    def _with(self, alpha: Scalar, beta: Scalar) -> "CautiousShrinkage":
        return eqx.tree_at(lambda path: (path.alpha, path.beta), self, (alpha, beta))

    def _first_rates(self, particles: Float[Array, "n dim"], problem: Problem) -> Float[Array, " n"]:
        """The time derivative at t = 0; -inf where the target is 0 there."""
        start, center = jnp.zeros((), particles.dtype), self._center(problem)

        def rate(x: Float[Array, " dim"]) -> Scalar:
            x_a, x_b = self.shrink(start, x, center)
            initial = jax.value_and_grad(problem.log_initial)(x_a)
            # The target's score has no weight yet.
            target = problem.log_target(x_b), jnp.zeros_like(x)
            return self.combine(start, x - center, initial, target).time_derivative

        return problem.spread.map(rate, particles)

    def told(self) -> dict[str, Scalar]:
        """Which path it became."""
        return {"alpha": jnp.asarray(self.alpha), "beta": jnp.asarray(self.beta)}


def _deviation(rates: Float[Array, " n"]) -> Scalar:
    """The mean absolute deviation, over particles where it is finite."""
    finite = jnp.isfinite(rates)
    mean = jnp.mean(rates, where=finite)
    return jnp.mean(jnp.abs(rates - mean), where=finite)
