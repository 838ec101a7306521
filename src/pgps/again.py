"""A run that has missed modes is made again, from a law that covers the maxima which a second opinion has found.

The weights of the second run are exact like those of the first, and its law does not hang on the first one's particles.
"""

import dataclasses
import time

import jax
from jaxtyping import Array

from pgps.density import Problem
from pgps.methods.base import AbstractMethod
from pgps.methods.pgps import PGPS
from pgps.outcome import Outcome, outcome
from pgps.result import Result, Status
from pgps.run import Options, drive
from pgps.scouting import covering

# Folded into a run's key for the one after it, far from the numbers of its steps.
_AGAIN = 2**30 + 1


def made_again(
    first: Outcome, method: AbstractMethod, problem: Problem, key: Array, num_particles: int, options: Options
) -> Result:
    """The result of the run that a first one calls for: of a second run, or of the first if that is all there is."""
    start, result = time.perf_counter(), first.result
    left = None if options.max_evaluations is None else options.max_evaluations - result.num_evaluations.total
    if not _is_asked_for(first, method) or start >= options.deadline or (left is not None and left <= 0):
        return result
    assert first.missed is not None
    # A checkpoint is that of the first run, after which this one is made again.
    options, key = options._replace(max_evaluations=left, checkpoint=None), jax.random.fold_in(key, _AGAIN)
    try:
        law = covering(problem, first.missed)
        problem = Problem.of(problem.logdensity_fn, law, problem.spread)
        [(run, trace)] = drive([method], [problem], key[None], num_particles, options).runs
        again = outcome(run, trace, method, problem, key, dict(result.provenance), options).result
    except (Exception, KeyboardInterrupt) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        return _doubted(result, f"a second run, from a law that covers the maxima, ended by an error ({reason})")
    num_evaluations = result.num_evaluations + again.num_evaluations
    if again.status != Status.COMPLETED:
        cut = f"a second run, from a law that covers the maxima, was cut short ({again.status.name.lower()})"
        return _doubted(dataclasses.replace(result, num_evaluations=num_evaluations), cut)
    told = {
        "seconds": result.provenance["seconds"] + time.perf_counter() - start,
        "first_run": {
            "log_evidence": result.log_evidence,
            "log_evidence_error": result.log_evidence_error,
            "num_steps": len(result.trace["t"]),
            "warnings": list(result.warnings),
        },
        "covered_maxima": len(law.maxima),
    }
    return dataclasses.replace(again, num_evaluations=num_evaluations, provenance=result.provenance | told)


def _is_asked_for(first: Outcome, method: AbstractMethod) -> bool:
    scouting = method.scouting if isinstance(method, PGPS) else None
    return first.missed is not None and scouting is not None and scouting.again


def _doubted(result: Result, doubt: str) -> Result:
    return dataclasses.replace(result, warnings=(*result.warnings, doubt))
