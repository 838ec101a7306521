"""The log-weighted shrinkage path (Eq. 5) with the closed forms of appendix B, around a centre c (the paper: 0).

    ln p_t(x) = (1-t) ln p0(x_a) + t ln p1(x_b),   x_a = c + a (x-c),   x_b = c + (x-c) / b,
    a = 1 - alpha t,   b = beta + (1-beta) t

alpha spreads the initial law as t grows; beta < 1 pulls the target's modes towards c while particles are still there.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from pgps import _checks
from pgps.density import Problem
from pgps.paths.base import AbstractPath, PathValue, temper


class LogWeightedShrinkage(AbstractPath):
    """The paper's path (Eq. 5).

    Args:
        alpha: How far the initial law is spread, in [0, 1].
        beta: How far the target is shrunk at first, in (0, 1]; 1 is not at all.
        center: The fixed point c of both: a number, or a pytree like a particle. None is the initial law's mean.
    """

    alpha: float = 0.0
    beta: float = 1.0
    center: PyTree | None = None

    def __check_init__(self):
        _checks.within("alpha", self.alpha, 0, 1)
        _checks.within("beta", self.beta, 0, 1, open_low=True)

    def logdensity(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> Scalar:
        """ln p_t(x), up to a constant."""
        x_a, x_b = self.shrink(t, x, self._center(problem))
        return temper(1 - t, problem.log_initial(x_a)) + temper(t, problem.log_target(x_b))

    def evaluate(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> PathValue:
        """Appendix B: value, score and time derivative from one gradient of each end."""
        x_a, x_b = self.shrink(t, x, self._center(problem))
        initial = jax.value_and_grad(problem.log_initial)(x_a)
        target = jax.value_and_grad(problem.log_target)(x_b)
        return self.combine(t, x - self._center(problem), initial, target)

    def keeps_support(self) -> Bool[Array, ""]:
        """Only if nothing is spread or shrunk."""
        return (jnp.asarray(self.alpha) == 0) & (jnp.asarray(self.beta) == 1)

    def combine(
        self,
        t: Scalar,
        offset: Float[Array, " dim"],
        initial: tuple[Scalar, Float[Array, " dim"]],
        target: tuple[Scalar, Float[Array, " dim"]],
    ) -> PathValue:
        """The path's value at c + offset, from the log-density and score of each end where `shrink` takes it."""
        (log_p0, score_0), (log_p1, score_1) = initial, target
        a, b = self._factors(t)
        return PathValue(
            logdensity=temper(1 - t, log_p0) + temper(t, log_p1),
            score=temper((1 - t) * a, score_0) + temper(t / b, score_1),
            time_derivative=(
                log_p1
                - log_p0
                - jnp.dot(offset, temper(self.alpha * (1 - t), score_0))
                - jnp.dot(offset, temper((1 - self.beta) * t / b**2, score_1))
            ),
        )

    def _factors(self, t: Scalar) -> tuple[Scalar, Scalar]:
        return 1 - self.alpha * t, self.beta + (1 - self.beta) * t

    def _center(self, problem: Problem) -> Float[Array, " dim"]:
        return problem.center if self.center is None else problem.structure.ravel(self.center)

    def shrink(
        self, t: Scalar, x: Float[Array, "*n dim"], center: Float[Array, " dim"]
    ) -> tuple[Float[Array, "*n dim"], Float[Array, "*n dim"]]:
        """x_a and x_b, where the initial law and the target are evaluated."""
        a, b = self._factors(t)
        return center + a * (x - center), center + (x - center) / b
