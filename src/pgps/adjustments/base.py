"""The interface of an adjustment."""

import abc
from typing import NamedTuple, Protocol

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from pgps.density import Evaluations, Population


class Evaluate(Protocol):
    """Evaluates p_t, at the time that an adjustment works at, for every particle."""

    def __call__(self, particles: Float[Array, "n dim"], key: Array | None = None, /) -> Population:
        """With a key a stochastic target is estimated; Metropolis-adjusted moves need it as it is, and pass none."""
        ...


class Adjustment(NamedTuple):
    """What an adjustment did, per particle.

    Attributes:
        num_steps: The moves.
        evaluations: What they cost.
        acceptance: The mean probability with which they were accepted; 1 where nothing is ever rejected.
        faults: Proposals, summed over particles, that were refused since the density is nan there.
        covered: How far particles moved: their mean squared distance, as a share of that between independent ones; less
            if they covered less of the way between narrow and wide parts.
        width_spread: By what factor the density's local width varies between particles.
        width_ratio: By what factor moves of local widths take it to vary, from narrow places to wide ones.
        inside: The share of the proposals inside the support.
        kept: What `replay` needs to make such moves again.
    """

    num_steps: Int[Array, ""]
    evaluations: Evaluations
    acceptance: Scalar | float = 1.0
    faults: Int[Array, ""] | int = 0
    covered: Scalar | float = float("nan")
    width_spread: Scalar | float = float("nan")
    width_ratio: Scalar | float = 1.0
    inside: Scalar | float = 1.0
    kept: PyTree = None


class AbstractAdjustment(eqx.Module):
    """Moves the particles at a fixed t with a kernel that has p_t, or nearly so, as its stationary law."""

    def init(self, population: Population, has_edge: Bool[Array, ""] | bool = False) -> PyTree:
        """What is carried from one adjustment to the next, such as an adapted step size; most carry nothing.

        Args:
            population: The particles.
            has_edge: Whether the density is known to jump to 0 somewhere.
        """
        return None

    def leaves_invariant(self) -> bool:
        """Whether p_t is the stationary law exactly, so that particles may carry weights; a hook that says no."""
        return False

    @abc.abstractmethod
    def adjust(
        self, key: Array, before: Scalar, t: Scalar, population: Population, memory: PyTree, evaluate: Evaluate
    ) -> tuple[Population, PyTree, Adjustment]:
        """Move the population, which is evaluated at t; `before` is the time that the step came from."""

    def replay(
        self, key: Array, kept: PyTree, population: Population, evaluate: Evaluate
    ) -> tuple[Population, Evaluations]:
        """Make the moves of an earlier adjustment again, on other particles and without adapting anything."""
        return population, Evaluations()
