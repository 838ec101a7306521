"""The report of one run of `pgps.sample`, whatever was sampled."""

from pathlib import Path

import jax
import numpy as np

from pgps.density import Structure
from pgps.reporting.figures import draw_pairs, encode
from pgps.reporting.report import Image, Report, Verdict, render
from pgps.result import Result, Status


def save_run(result: Result, folder: Path, asked: str) -> Path:
    """Write the result, its picture and its report into a new or empty folder; returns the report's path.

    Args:
        result: The result.
        folder: The folder.
        asked: The command that was run, to be shown in the report.
    """
    picture = encode(_draw_marginals(result), "png")
    page = render(_report(result, asked, picture))
    result.save(folder)
    (folder / "marginals.png").write_bytes(picture)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def judge(result: Result) -> Verdict:
    """A word on whether to trust a result."""
    if result.status != Status.COMPLETED:
        return Verdict(
            "bad",
            "Not usable.",
            f"The run stopped at t = {result.t:.4g}: these are no samples of the target.",
        )
    if result.warnings:
        return Verdict("care", "Take care.", "The run is complete, but there is reason to doubt it: see the warnings.")
    if result.ess is None:
        text = "The run is complete, but this method has no exact weights by which to check the particles."
        return Verdict("good", "No doubts raised.", text)
    return Verdict("good", "No doubts raised.", "The run is complete, and its weights give no cause for doubt.")


def _draw_marginals(result: Result):
    structure = Structure.of(jax.tree.map(lambda leaf: leaf[0], result.particles))
    leaves = jax.tree.leaves(result.particles)
    columns = np.concatenate([np.reshape(leaf, (result.num_particles, -1)) for leaf in leaves], axis=1)
    log_weights = np.asarray(result.log_weights, float)
    return draw_pairs(columns, np.exp(log_weights - log_weights.max()), structure.names)


def _report(result: Result, asked: str, picture: bytes) -> Report:
    calls, provenance = result.num_evaluations, result.provenance
    facts = {
        "Status": result.status.name.lower().replace("_", " "),
        "t reached": f"{result.t:g}",
        "Particles": f"{result.num_particles:,}",
        "Dimensions": f"{provenance['dim']:,}",
        "Steps": f"{len(result.trace['t']):,}",
        "Gradient calls": f"{calls.gradients:,}",
        "Value calls": f"{calls.values:,}",
        "Seconds": f"{provenance['seconds']:.1f}",
    }
    if result.ess is not None:
        facts["Effective sample size"] = f"{result.ess:.0f}"
    if result.log_evidence is not None:
        facts["Log evidence"] = f"{result.log_evidence:.4f} ± {result.log_evidence_error:.4f}"
    image = Image(
        picture,
        "png",
        "Marginals of the first coordinates, and the particles in each pair of them.",
        "Histograms of the first coordinates and scatter plots of each pair",
    )
    return Report(
        title="A pgps run",
        asked=asked,
        verdict=judge(result),
        facts=facts,
        warnings=result.warnings,
        tables=(),
        images=(image,),
        text=result.summary(),
        versions=provenance["versions"],
        settings=provenance,
    )
