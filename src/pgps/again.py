"""A run that has missed modes is made again, from a law that covers the maxima which a second opinion has found.

The weights of the second run are exact like those of the first, and its law does not hang on the first one's particles.
"""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from pgps.checkpoint import Checkpoint
from pgps.density import Evaluations, Problem
from pgps.methods.base import AbstractMethod
from pgps.outcome import Outcome, doubted, outcome, reason
from pgps.result import Result, Status
from pgps.run import Options, drive
from pgps.scouting import covering

# Folded into a run's key for the one after it, far from the numbers of its steps.
_AGAIN = 2**30 + 1
# By so much more evidence of the first run, the second one has lost something.
_STANDARD_ERRORS = 2.0
_SECOND = "a second run, from a law that covers the maxima,"


def made_again(
    first: Outcome, method: AbstractMethod, problem: Problem, key: Array, num_particles: int, options: Options
) -> tuple[Result, bool]:
    """The result of the run that a first one calls for: of a second run, or of the first if that is all there is.

    Also returned: whether the user has interrupted it.
    """
    start, result = time.perf_counter(), first.result
    left = None if options.max_evaluations is None else options.max_evaluations - result.num_evaluations.total
    late = start >= options.deadline or (left is not None and left <= 0)
    # Processes have a clock and an opinion each, and would part company.
    if first.missed is None or late or options.spread.num_processes > 1:
        return result, False
    checkpoint = None if options.checkpoint is None else _beside(options.checkpoint)
    options = options._replace(max_evaluations=left, checkpoint=checkpoint, at_once=1)
    key = jax.random.fold_in(key, _AGAIN)
    try:
        law = covering(problem, first.missed)
        problem = Problem.of(problem.logdensity_fn, law, problem.spread)
        driven = drive([method], [problem], key[None], num_particles, options)
    except KeyboardInterrupt:
        return doubted(result, f"{_SECOND} was interrupted"), True
    except (jax.errors.JaxRuntimeError, np.linalg.LinAlgError) as error:
        # Whatever the density does where this law leads, the first run is complete, and not to be lost.
        return doubted(result, f"{_SECOND} ended by an error ({reason(error)})"), False
    [(run, trace)] = driven.runs
    again = outcome(run, trace, method, problem, key, dict(result.provenance), options).result
    seconds = result.provenance["seconds"] + driven.earlier_seconds + time.perf_counter() - start
    told: dict[str, Any] = {"seconds": seconds}
    if driven.resumed_at:
        told["resumed_at"] = driven.resumed_at
    # The law's masses take a call at each maximum.
    calls = result.num_evaluations + again.num_evaluations + Evaluations(values=len(law.maxima))
    if again.status != Status.COMPLETED:
        first_of_two = dataclasses.replace(result, num_evaluations=calls, provenance=result.provenance | told)
        cut = f"{_SECOND} was cut short ({again.status.name.lower()})"
        return doubted(first_of_two, cut), again.status == Status.INTERRUPTED
    told |= {"covered_maxima": len(law.maxima), "first_run": _in_short(result)}
    again = dataclasses.replace(again, num_evaluations=calls, provenance=result.provenance | told)
    for doubt in (_lost(result, again), driven.failure):
        again = again if doubt is None else doubted(again, doubt)
    return again, False


def _lost(first: Result, second: Result) -> str | None:
    """A doubt, if the second run has less evidence than the first: it should have more, by what that one had missed."""
    assert first.log_evidence is not None
    assert first.log_evidence_error is not None
    assert second.log_evidence is not None
    assert second.log_evidence_error is not None
    error = math.hypot(first.log_evidence_error, second.log_evidence_error)
    if first.log_evidence - second.log_evidence <= _STANDARD_ERRORS * error:
        return None
    return (
        f"a first run had more evidence ({first.log_evidence:.4g} +- {first.log_evidence_error:.2g}), so this one has "
        "lost a part of the target, and both may have missed others; take more particles"
    )


def _in_short(result: Result) -> dict[str, Any]:
    """What is told of a first run."""
    return {
        "log_evidence": result.log_evidence,
        "log_evidence_error": result.log_evidence_error,
        "num_steps": len(result.trace["t"]),
        "warnings": list(result.warnings),
    }


def _beside(checkpoint: Checkpoint) -> Checkpoint:
    """A file of its own for the second run, next to that of the first."""
    path = Path(checkpoint.path)
    return dataclasses.replace(checkpoint, path=path.with_name(path.name + ".again"))
