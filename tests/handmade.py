"""Results and recordings made by hand, for tests of what shows them: no sampler is compiled."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgps.density import Evaluations
from pgps.reporting.recording import Recorder, Recording
from pgps.result import Result, Status
from pgps.run import Snapshot


def make_result(particles: Any, **changes: Any) -> Result:
    """A complete result of one step, with these particles."""
    leaves = jax.tree.leaves(particles)
    provenance = {
        "method": {"class": "pgps.methods.pgps.PGPS", "note": "</pre><script>alert(1)</script>"},
        "logdensity_fn": "pgps_target_banana.logdensity",
        "dim": int(sum(np.prod(leaf.shape[1:]) for leaf in leaves)),
        "seconds": 1.5,
        "versions": {"pgps": "0.0", "jax": "1.0"},
    }
    result = Result(
        particles=particles,
        log_weights=jnp.zeros(len(leaves[0])),
        status=Status.COMPLETED,
        t=1.0,
        num_evaluations=Evaluations(0, 1234),
        trace={"t": np.array([1.0])},
        warnings=(),
        provenance=provenance,
    )
    return dataclasses.replace(result, **changes)


def make_weighed(num: int = 200, dim: int = 2, num_steps: int = 20, **changes: Any) -> Result:
    """A result with two modes at -2 and 2 of the first coordinate, weights, evidence and a trace."""
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(num, dim)) * 0.3
    columns[:, 0] += np.where(np.arange(num) % 2, 2.0, -2.0)
    steps = np.arange(1, num_steps + 1)
    trace = {
        "t": steps / num_steps,
        "dt": 10.0 ** -(3 - 2 * steps / num_steps),
        "ess": num * (1 - 0.3 * steps / num_steps),
        "pareto_k": 0.3 + 0.01 * np.sin(steps),
        "acceptance": 0.8 + 0.01 * np.cos(steps),
        "faults": np.zeros(num_steps),
    }
    weighed = {"ess": 0.7 * num, "log_evidence": -1.25, "log_evidence_error": 0.05, "trace": trace}
    weighed["log_weights"] = jnp.asarray(generator.normal(size=num) * 0.3)
    return make_result(jnp.asarray(columns), **{**weighed, **changes})


def make_recording(result: Result, num_steps: int = 20, num_frames: int = 60) -> Recording:
    """Particles that come from the origin, a little further at each step, to where the result has them."""
    recorder = Recorder(num_frames)
    for step in range(num_steps + 1):
        share = step / num_steps
        particles = jax.tree.map(lambda leaf, share=share: np.asarray(leaf) * share, result.particles)
        recorder(Snapshot(share, step, particles, {}))
    recording = recorder.recording()
    assert recording is not None
    return recording
