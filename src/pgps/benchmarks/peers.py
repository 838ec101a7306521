"""BlackJAX's samplers, as a user would run them: adaptive tempered SMC, and NUTS where log-densities suffice.

Adaptive tempered SMC follows p_t ~ p0 (p1 / p0)^t: the prior is the initial law and the log-likelihood ln p1 - ln p0.
Its kernel's step size h is one number for all temperatures, chosen for each target by pilot runs: they bisect ln h
towards an acceptance, averaged over all moves of a run. The aim is above the 0.574 that is optimal for MALA at one
temperature (Roberts and Rosenthal 1998): a step that has it on average is too long for the last temperatures. Pilots
are the user's labour, and count neither as gradients nor as seconds.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from pgps.benchmarks.evidence_cases import AnyTarget, Case, Outcome
from pgps.initial import AbstractLaw


def check_installed() -> None:
    """Raise unless BlackJAX is there."""
    if importlib.util.find_spec("blackjax") is None:
        raise ModuleNotFoundError(
            "samplers blackjax and nuts need BlackJAX, which is not installed; run: pip install 'pgps[bench]', or "
            "leave them out: --samplers exact,zero"
        )


def _import() -> Any:
    # Its own annotations do not hold for all of its algorithms, so type checkers are kept out.
    return importlib.import_module("blackjax")


class Ladder(eqx.Module):
    """A run of adaptive tempered SMC."""

    particles: Float[Array, "n dim"]
    weights: Float[Array, " n"]
    t: Scalar
    log_evidence: Scalar
    acceptance: Scalar
    num_temperatures: Array


class BlackjaxSMC(eqx.Module):
    """BlackJAX's adaptive tempered SMC with MALA moves.

    Args:
        target_ess: The share of the particles that each temperature keeps effective.
        num_mcmc_steps: MALA steps at each temperature.
        acceptance: The mean acceptance that the step size is chosen for.
        pilot_runs: Runs that choose it.
        max_temperatures: Stop after so many, wherever t is then.
    """

    target_ess: float = 0.9
    num_mcmc_steps: int = 5
    acceptance: float = 0.75
    pilot_runs: int = 6
    max_temperatures: int = 2000

    def run(self, case: Case, keys: Sequence[Array], seeds: Sequence[int], num_particles: int) -> list[Outcome]:
        """Sample a case once per seed, in one compiled program."""
        check_installed()
        program = eqx.filter_jit(self.ladder)
        step_size = self.tune(program, *case.build(seeds[0]), num_particles)
        outcomes = []
        for key, seed in zip(keys, seeds, strict=True):
            ladder, seconds = _timed(program, key, step_size, *case.build(seed), num_particles)
            outcomes.append(self._outcome(ladder, seconds, num_particles))
        return outcomes

    def ladder(
        self, key: Array, step_size: Scalar, target: AnyTarget, initial: AbstractLaw, num_particles: int
    ) -> Ladder:
        """Go from the initial law to the target."""
        blackjax = _import()
        algorithm = blackjax.adaptive_tempered_smc(
            initial.logdensity,
            lambda x: target(x) - initial.logdensity(x),
            blackjax.mala.build_kernel(),
            blackjax.mala.init,
            blackjax.smc.extend_params({"step_size": step_size}),
            blackjax.smc.resampling.systematic,
            self.target_ess,
            num_mcmc_steps=self.num_mcmc_steps,
        )

        def unfinished(carry: tuple) -> Array:
            _, state, _, _, count = carry
            return (state.tempering_param < 1) & (count < self.max_temperatures)

        def advance(carry: tuple) -> tuple:
            key, state, log_evidence, acceptance, count = carry
            key, key_step = jax.random.split(key)
            state, info = algorithm.step(key_step, state)
            accepted = jnp.mean(info.update_info.acceptance_rate)
            return key, state, log_evidence + info.log_likelihood_increment, acceptance + accepted, count + 1

        key_init, key = jax.random.split(key)
        state = algorithm.init(jax.vmap(initial.sample)(jax.random.split(key_init, num_particles)))
        carry = (key, state, jnp.zeros(()), jnp.zeros(()), jnp.asarray(0))
        _, state, log_evidence, acceptance, count = jax.lax.while_loop(unfinished, advance, carry)
        return Ladder(
            state.particles, state.weights, jnp.asarray(state.tempering_param), log_evidence, acceptance / count, count
        )

    def tune(
        self, program: Callable[..., Ladder], target: AnyTarget, initial: AbstractLaw, num_particles: int
    ) -> Scalar:
        """The step size of MALA: pilots on the scale from a millionth of the initial law's variance to four of it."""
        key_scale, *keys = jax.random.split(jax.random.key(0), self.pilot_runs + 1)
        variance = jnp.mean(jnp.var(jax.vmap(initial.sample)(jax.random.split(key_scale, 1000)), axis=0))
        low, high = jnp.log(1e-6 * variance), jnp.log(4 * variance)
        for key in keys:
            middle = 0.5 * (low + high)
            accepted = program(key, jnp.exp(middle), target, initial, num_particles).acceptance
            low, high = (middle, high) if accepted > self.acceptance else (low, middle)
        return jnp.exp(0.5 * (low + high))

    def _outcome(self, ladder: Ladder, seconds: float, num_particles: int) -> Outcome:
        count = int(ladder.num_temperatures)
        arrived = bool(ladder.t >= 1) and bool(jnp.isfinite(ladder.log_evidence))
        missed = f"stopped at t = {float(ladder.t):.3g} after {count} temperatures"
        return Outcome(
            ladder.particles,
            jnp.log(ladder.weights),
            arrived,
            float(ladder.log_evidence) if arrived else None,
            None,
            # Each temperature begins with a gradient at every particle, which its last move knew at another t.
            num_particles * count * (self.num_mcmc_steps + 1),
            # One for the ladder, one for the weights.
            num_particles * count * 2,
            seconds,
            () if arrived else (missed,),
        )


class Nuts(eqx.Module):
    """BlackJAX's NUTS after window adaptation: chains from the initial law, no evidence.

    Args:
        num_chains: Chains, each with its own warm-up.
        num_warmup: Steps of warm-up.
        num_draws: Draws that are kept, of each chain.
    """

    num_chains: int = 4
    num_warmup: int = 500
    num_draws: int = 500

    def run(self, case: Case, keys: Sequence[Array], seeds: Sequence[int], num_particles: int) -> list[Outcome]:
        """Sample a case once per seed, in one compiled program; the number of particles is of no use here."""
        check_installed()
        program = eqx.filter_jit(self.chains)
        program(jax.random.key(0), *case.build(seeds[0]))
        outcomes = []
        for key, seed in zip(keys, seeds, strict=True):
            (draws, gradients), seconds = _timed(program, key, *case.build(seed))
            equal = jnp.zeros(len(draws))
            outcomes.append(Outcome(draws, equal, True, None, None, int(gradients), 0, seconds))
        return outcomes

    def chains(self, key: Array, target: AnyTarget, initial: AbstractLaw) -> tuple[Float[Array, "n dim"], Array]:
        """All chains' draws, and the gradients that warm-up and draws took."""
        draws, gradients = jax.vmap(lambda key: self._chain(key, target, initial))(
            jax.random.split(key, self.num_chains)
        )
        return draws.reshape(-1, draws.shape[-1]), jnp.sum(gradients)

    def _chain(self, key: Array, target: AnyTarget, initial: AbstractLaw) -> tuple[Float[Array, "n dim"], Array]:
        blackjax = _import()
        key_start, key_warmup, key_draws = jax.random.split(key, 3)
        adaptation = blackjax.window_adaptation(blackjax.nuts, target)
        (state, parameters), warmup = adaptation.run(key_warmup, initial.sample(key_start), self.num_warmup)
        kernel = blackjax.nuts(target, **parameters)

        def draw(state: Any, key: Array) -> tuple[Any, tuple[Array, Array]]:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, steps) = jax.lax.scan(draw, state, jax.random.split(key_draws, self.num_draws))
        return draws, jnp.sum(warmup.info.num_integration_steps) + jnp.sum(steps) + 1


def _timed(program: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    outcome = jax.block_until_ready(program(*arguments))
    return outcome, time.perf_counter() - start
