"""The interface of a path of densities p_t, known up to a constant that may depend on t.

A path is one method, `logdensity(t, x, problem)`, where `problem.log_initial` and `problem.log_target` are ln p0 and
ln p1 of one flat vector. The score and the time derivative come with it by one reverse pass; a member whose closed
forms are cheaper replaces `evaluate`, and the contract test holds it to the values of the default.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from pgps.density import Evaluations, Population, Problem, map_particles


class PathValue(NamedTuple):
    """ln p_t(x), its score and its time derivative."""

    logdensity: Scalar
    score: Float[Array, " dim"]
    time_derivative: Scalar
    extra: PyTree = None
    """What `retime` needs to know of the particle."""


class AbstractPath(eqx.Module):
    """A differentiable path from `problem`'s initial law at t = 0 to its target at t = 1."""

    @abc.abstractmethod
    def logdensity(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> Scalar:
        """ln p_t(x), up to a constant."""

    def evaluate(self, t: Scalar, x: Float[Array, " dim"], problem: Problem) -> PathValue:
        """ln p_t(x), its score and its time derivative, with one gradient call of the target."""
        # Reverse mode for both arguments at once: the user's density may have no forward mode.
        value, (time_derivative, score) = jax.value_and_grad(self.logdensity, argnums=(0, 1))(t, x, problem)
        return PathValue(value, score, time_derivative)

    def choose(
        self, particles: Float[Array, "n dim"], problem: Problem, has_edge: Bool[Array, ""]
    ) -> tuple["AbstractPath", Evaluations] | None:
        """A path of the same kind with settings that suit the first particles, and what that cost; None: as it is."""
        return None

    def keeps_support(self) -> Bool[Array, ""] | bool:
        """Whether p_t, before t = 1, has density where both ends have, and nowhere else; a hook that says no."""
        return False

    def told(self) -> dict[str, Scalar]:
        """What a trace should tell of the path, such as settings that it chose."""
        return {}

    def retime(self, t: Scalar, population: Population) -> Population | None:
        """The same particles at another t, if their last evaluation tells all about it; None if it does not."""
        return None


@jax.custom_jvp
def temper(weight: Scalar, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Weight * value, where a term of weight 0 is absent even if its value is infinite or nan."""
    return jnp.where(weight == 0, 0.0, weight * value)


@temper.defjvp
def _temper_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # The rule for a product, also at weight 0, where that of `where` would lose the derivative by the weight.
    (weight, value), (weight_dot, value_dot) = primals, tangents
    return temper(weight, value), weight_dot * value + weight * value_dot


def evaluate(
    path: AbstractPath, t: Scalar, particles: Float[Array, "n dim"], problem: Problem, key: Array | None = None
) -> Population:
    """Evaluate a path at every particle; with a key a stochastic target is estimated."""
    value = map_particles(lambda x, problem: path.evaluate(t, x, problem), particles, problem, key)
    return Population.of(particles, *value)
