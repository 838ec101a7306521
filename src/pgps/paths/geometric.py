"""The geometric (annealing) path: ln p_t(x) = (1-t) ln p0(x) + t ln p1(x)."""

from jaxtyping import Array, Float, Scalar

from pgps.density import Problem
from pgps.paths.base import AbstractPath, temper


class Geometric(AbstractPath):
    """The log-weighted path without shrinkage, setting (A) of the paper: alpha = 0, beta = 1."""

    def logdensity(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> Scalar:
        """ln p_t(x), up to a constant."""
        return temper(1 - t, problem.log_initial(x)) + temper(t, problem.log_target(x))
