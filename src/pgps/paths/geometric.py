"""The geometric (annealing) path: ln p_t(x) = (1-t) ln p0(x) + t ln p1(x)."""

import jax
from jaxtyping import Array, Float, Scalar

from pgps.density import Problem
from pgps.paths.base import AbstractPath, PathValue, temper


class Geometric(AbstractPath):
    """The log-weighted path without shrinkage, setting (A) of the paper: alpha = 0, beta = 1."""

    def logdensity(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> Scalar:
        """ln p_t(x), up to a constant."""
        return temper(1 - t, problem.log_initial(x)) + temper(t, problem.log_target(x))

    def evaluate(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> PathValue:
        """Value, score and time derivative from one gradient of each end."""
        log_p0, score_0 = jax.value_and_grad(problem.log_initial)(x)
        log_p1, score_1 = jax.value_and_grad(problem.log_target)(x)
        return PathValue(
            logdensity=temper(1 - t, log_p0) + temper(t, log_p1),
            score=temper(1 - t, score_0) + temper(t, score_1),
            time_derivative=log_p1 - log_p0,
        )
