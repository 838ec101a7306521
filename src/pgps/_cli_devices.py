"""Options about threads, devices and processes, and the mesh that they ask for."""

import argparse
import contextlib
import os
from typing import Any

import jax
from jax.sharding import Mesh

from pgps import _cli_inputs as inputs
from pgps.programs import THREADS_VARIABLE

AXIS = "particles"


def add_threads(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Give the parser the option about threads."""
    threads_help = "threads on a CPU (default: one per core); 1 is often faster where steps take milliseconds"
    parser.add_argument("--threads", type=inputs.whole(1, 4096), metavar="N", help=threads_help)


def limit_threads(number: int) -> None:
    """Have XLA use so many threads. To be called before JAX is used for anything."""
    os.environ[THREADS_VARIABLE] = str(number)


def add_options(group: argparse._ArgumentGroup) -> None:
    """Give the group the options."""
    devices_help = "share the particles over N devices; on a CPU threads (default: 1; with --processes all)"
    group.add_argument("--devices", type=inputs.whole(1, 4096), metavar="N", help=devices_help)
    batch_help = "evaluate so many particles at once on each device, to bound memory (default: all)"
    group.add_argument("--batch-size", type=inputs.whole(1, inputs.LARGEST), metavar="N", help=batch_help)
    processes_help = "run this command N times, on one machine or many, and the N work together"
    group.add_argument("--processes", type=inputs.whole(1, 4096), metavar="N", help=processes_help)
    process_help = "which of the N this is, from 0; the first one writes the results"
    group.add_argument("--process", type=inputs.whole(0, 4095), metavar="I", help=process_help)
    coordinator_help = "where the first process listens for the others, the same for all"
    group.add_argument("--coordinator", metavar="HOST:PORT", help=coordinator_help)


def make_mesh(args: argparse.Namespace) -> Mesh | None:
    """The devices that share the particles; None for one device. To be called before JAX is used for anything else."""
    together = (args.processes, args.process, args.coordinator)
    if any(value is not None for value in together) and None in together:
        missing = [f"--{name}" for name in ("processes", "process", "coordinator") if getattr(args, name) is None]
        raise inputs.MisuseError(f"{' and '.join(missing)} must be given, too; as in --coordinator host:1234")
    if args.processes is not None:
        return _joined(args)
    return None if args.devices is None else _mesh(_devices(args.devices))


def _joined(args: argparse.Namespace) -> Mesh:
    if args.process >= args.processes:
        raise inputs.MisuseError(f"--process must be below --processes {args.processes}, got {args.process}")
    if args.devices is not None:
        if args.devices % args.processes:
            raise inputs.MisuseError(
                f"--devices must be a multiple of --processes {args.processes}, got {args.devices}; share them evenly"
            )
        _ask_for(args.devices // args.processes)
    try:
        jax.distributed.initialize(args.coordinator, num_processes=args.processes, process_id=args.process)
    except (RuntimeError, ValueError) as error:
        raise inputs.MisuseError(f"--coordinator {args.coordinator}: {inputs.first_line(error)}") from error
    return _mesh(jax.devices())


def _devices(number: int) -> list[Any]:
    _ask_for(number)
    devices = jax.devices()
    if len(devices) < number:
        raise inputs.MisuseError(f"--devices must be at most {len(devices)} here, got {number}; that is all there are")
    return devices[:number]


def _ask_for(number: int) -> None:
    """Have so many devices on the CPU, unless JAX is already in use and has what it has."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)


def _mesh(devices: list[Any]) -> Mesh:
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices)
