"""A program of its own for test_spread: JAX fixes the number of devices and processes once per program.

    python spread_program.py FOLDER DEVICES [COORDINATOR PROCESSES PROCESS]

runs each method on a mesh of all devices, and without processes also on one device, and writes what came out.
"""

import sys
import warnings
from pathlib import Path

import jax
import numpy as np


def main(folder: Path, num_devices: int, *together: str) -> None:
    """Run, and write one archive per method and number of devices."""
    jax.config.update("jax_num_cpu_devices", num_devices)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    if together:
        coordinator, processes, process = together
        jax.distributed.initialize(coordinator, num_processes=int(processes), process_id=int(process))
    import pgps

    target, initial = pgps.targets.nine_gaussians()
    cheap = {"smc": pgps.methods.TemperedSMC(), "svgd": pgps.methods.SVGD(0.1, 5)}
    # Two families: what takes long here is compilation.
    field = pgps.fields.Selection((pgps.fields.Affine(), pgps.fields.Local()))
    exact = pgps.exact(field=field, scouting=None)
    dear = {"exact": exact, "paper": pgps.paper(max_training_steps=5, max_dt=0.2, width=8)}
    meshes = {jax.device_count(): jax.make_mesh((jax.device_count(),), ("particles",))}
    if not together:
        meshes |= {1: None, 2: jax.make_mesh((2,), ("particles",), devices=jax.devices()[:2])}
    for name, method in ({"smc": cheap["smc"]} if together else cheap | dear).items():
        for size, mesh in meshes.items():
            if size == 2 and name != "smc" and not together:
                continue
            batch_size = 30 if size == 2 and not together else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pgps.PGPSWarning)
                result = pgps.sample(
                    target,
                    initial,
                    key=jax.random.key(0),
                    num_particles=200,
                    method=method,
                    mesh=mesh,
                    batch_size=batch_size,
                )
            if jax.process_index() > 0:
                continue
            calls = result.num_evaluations
            np.savez(
                folder / f"{name}-{size}.npz",
                particles=np.asarray(result.particles),
                log_weights=np.asarray(result.log_weights),
                log_evidence=np.nan if result.log_evidence is None else result.log_evidence,
                ess=np.nan if result.ess is None else result.ess,
                evaluations=np.asarray([int(count) for count in (calls.values, calls.gradients)]),
                num_shards=len(result.particles.sharding.device_set),
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
