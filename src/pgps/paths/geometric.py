"""The geometric (annealing) path: ln p_t(x) = (1-t) ln p0(x) + t ln p1(x)."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Scalar

from pgps.density import Population, Problem
from pgps.paths.base import AbstractPath, PathValue, temper


class Ends(NamedTuple):
    """Both ends of the path at a particle: all that is needed to know the path there at any t."""

    log_initial: Scalar
    score_initial: Float[Array, " dim"]
    log_target: Scalar
    score_target: Float[Array, " dim"]

    @classmethod
    def of(cls, x: Float[Array, " dim"], problem: Problem) -> "Ends":
        """Evaluate both ends, with one gradient call of the target."""
        return cls(*jax.value_and_grad(problem.log_initial)(x), *jax.value_and_grad(problem.log_target)(x))

    def at(self, t: Scalar) -> PathValue:
        """The path at t."""
        return PathValue(
            logdensity=temper(1 - t, self.log_initial) + temper(t, self.log_target),
            score=temper(1 - t, self.score_initial) + temper(t, self.score_target),
            time_derivative=self.log_target - self.log_initial,
            extra=self,
        )


class Geometric(AbstractPath):
    """The log-weighted path without shrinkage, setting (A) of the paper: alpha = 0, beta = 1."""

    def logdensity(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> Scalar:
        """ln p_t(x), up to a constant."""
        return temper(1 - t, problem.log_initial(x)) + temper(t, problem.log_target(x))

    def evaluate(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> PathValue:
        """Value, score and time derivative from one gradient of each end."""
        return Ends.of(x, problem).at(t)

    def keeps_support(self) -> bool:
        """It does: a product has density where its factors have."""
        return True

    def retime(self, t: Scalar, population: Population) -> Population:
        """Both ends are known at each particle, so that nothing is evaluated."""
        return Population.of(population.particles, *jax.vmap(lambda ends: ends.at(t))(population.extra))
