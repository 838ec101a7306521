"""What a result amounts to: whether to trust it, why, and its main figures."""

import numpy as np

from pgps.reporting.report import Verdict
from pgps.result import Result, Status


def judge(result: Result) -> Verdict:
    """A word on whether to trust a result."""
    if result.status != Status.COMPLETED:
        text = f"The run stopped at t = {result.t:.4g}: these are no samples of the target."
        return Verdict("bad", "Failed.", text)
    if result.warnings:
        count = "is one reason" if len(result.warnings) == 1 else f"are {len(result.warnings)} reasons"
        return Verdict("care", "Doubt.", f"The run is complete, but there {count} to doubt it.")
    if result.ess is None:
        text = "The run is complete, but this method has no exact weights by which to check the particles."
        return Verdict("care", "Doubt.", text)
    return Verdict("good", "Trust.", "The run is complete, and none of its checks speaks against it.")


def reasons(result: Result) -> list[str]:
    """The verdict's reasons: what there is to doubt, or what was checked."""
    if result.warnings or result.status != Status.COMPLETED:
        return list(result.warnings)
    unseen = "A mode that no particle ever came near leaves no trace: no check can see it."
    if result.ess is None or result.log_evidence_error is None:
        return ["No warning was raised.", unseen]
    found = [
        *([] if result.second_start is None else [result.second_start]),
        f"The effective sample size is {result.ess:.0f} of {result.num_particles:,} particles.",
        f"The log evidence is known to {result.log_evidence_error:.2g} (doubtful above 0.5).",
    ]
    sentences = {
        "pareto_k": "The weights have no heavy tail: Pareto k is {:.2f} (doubtful above 0.7).",
        "num_ancestors": "The particles descend from {:.0f} of the first ones.",
        "disagreement": "The two islands of particles agree: their log evidences are {:.1f} standard errors apart.",
    }
    for name, sentence in sentences.items():
        if name in result.trace and len(result.trace[name]) and np.isfinite(value := float(result.trace[name][-1])):
            found.append(sentence.format(value))
    return [*found, unseen]


def title(result: Result) -> str:
    """What was sampled, and how."""
    target = result.provenance.get("logdensity_fn", "a density")
    name = target.get("class", "a density") if isinstance(target, dict) else str(target)
    short = name.removeprefix("pgps_target_").rpartition("<locals>.")[2].rpartition(".")[2]
    return f"{short or name}, sampled by {method_name(result)}"


def method_name(result: Result) -> str:
    """The method's class."""
    return str(result.provenance["method"]["class"]).rpartition(".")[2]


def facts(result: Result) -> dict[str, str]:
    """The main figures."""
    calls, provenance = result.num_evaluations, result.provenance
    found = {}
    if result.log_evidence is not None:
        found["Log evidence"] = f"{result.log_evidence:.4f} ± {result.log_evidence_error:.4f}"
    if result.ess is not None:
        found["Effective sample size"] = f"{result.ess:.0f}"
    return found | {
        "Status": result.status.name.lower().replace("_", " "),
        "t reached": f"{result.t:g}",
        "Particles": f"{result.num_particles:,}",
        "Dimensions": f"{provenance['dim']:,}",
        "Steps": f"{len(result.trace['t']):,}",
        "Gradient calls": f"{calls.gradients:,}",
        "Value calls": f"{calls.values:,}",
        "Seconds": f"{provenance['seconds']:.1f}",
    }
