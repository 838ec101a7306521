"""`pgps sample`: it translates options."""

import argparse
import inspect
from pathlib import Path
from typing import Any

import jax

import pgps
from pgps import _cli_config as config
from pgps import _cli_devices as devices
from pgps import _cli_inputs as inputs
from pgps import _cli_model as model
from pgps import _cli_report as report_command
from pgps import reporting
from pgps.result import Result

EXAMPLES = """\
  pgps sample banana.py:logdensity --dim 2 --initial normal:0,3
  pgps sample banana.py:logdensity --dim 2 --method paper --psi 0.05 --langevin-steps 10
  pgps sample banana.py:logdensity --shape 2,3 --method training-free --out runs/banana
  pgps sample banana.py:logdensity --dim 2 --method langevin --step-size 0.02 --steps 500
  pgps sample banana.py:logdensity --dim 2 --checkpoint banana.checkpoint --max-seconds 3600
  pgps sample banana.py:logdensity --dim 2 --particles 100000 --devices 4 --batch-size 5000
  pgps sample schools.py:numpyro_model --data schools.csv
  pgps sample --config runs/sample-1/config.toml --seed 1
"""

# An option that is left out is not passed on, so that defaults are stated once, in the library.
_UNSET: dict[str, Any] = {"default": argparse.SUPPRESS}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the options of `pgps sample`."""
    target_help = (
        "a function of one particle that returns its log-density; without --dim and --shape a NumPyro model, a PyMC "
        "model, or a function that is declared to return a pymc.Model"
    )
    parser.add_argument("target", metavar="FILE.py:function", help=target_help)
    config.add_option(parser)
    data_help = "data for the function or model, by name: CSV with a header, NPZ or JSON"
    parser.add_argument("--data", type=inputs.path, metavar="FILE", help=data_help)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--dim", type=inputs.whole(1, inputs.LARGEST), metavar="D", help="a particle is a vector of D numbers"
    )
    shape.add_argument("--shape", type=inputs.shape, metavar="2,3", help="a particle is an array of this shape")
    law_help = (
        "where particles start: normal:MEAN,SCALE or uniform:LOW,HIGH, for a model in unconstrained coordinates, or "
        "its prior (default: normal:0,1; for a model prior, or a Gaussian around a quick fit where there is none)"
    )
    parser.add_argument("--initial", metavar="LAW", help=law_help)
    scouted_help = "start also from maxima that ascents from there find, which helps with narrow modes"
    parser.add_argument("--scouted", action="store_true", help=scouted_help)
    num_particles = inspect.signature(pgps.sample).parameters["num_particles"].default
    particles_help = f"how many particles (default: {num_particles})"
    parser.add_argument(
        "--particles",
        dest="num_particles",
        type=inputs.whole(2, inputs.LARGEST),
        metavar="N",
        help=particles_help,
        **_UNSET,
    )
    method_help = (
        "exact and smc weigh their particles and give the evidence, paper and training-free follow the paper's path, "
        "the others are its baselines (default: %(default)s)"
    )
    parser.add_argument("--method", choices=inputs.METHODS, default="exact", help=method_help)
    report_command.add_frames_option(parser)
    _add_limit_options(parser.add_argument_group("checkpoint and limits"))
    devices.add_options(parser.add_argument_group("devices and processes"))
    group = parser.add_argument_group("options of the method, with the default of each method that has them")
    for name, (flag, kind, text) in inputs.OPTIONS.items():
        metavar, option_help = kind.__name__.upper(), f"{text} ({inputs.option_defaults(name)})"
        group.add_argument(flag, dest=name, type=kind, metavar=metavar, help=option_help, **_UNSET)


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    checkpoint_help = "keep the run in this file; if it is there, go on from it, and end with the same bits"
    group.add_argument("--checkpoint", type=inputs.path, metavar="FILE", help=checkpoint_help)
    every = inspect.signature(pgps.Checkpoint).parameters["every"].default
    every_help = f"seconds between two writes of the checkpoint (default: {every:g})"
    group.add_argument("--checkpoint-every", type=float, metavar="SECONDS", help=every_help, **_UNSET)
    group.add_argument("--resume", action="store_true", help="do not begin anew if the checkpoint is not there")
    evaluations_help = "stop after so many calls of the log-density, summed over particles"
    group.add_argument("--max-evaluations", type=inputs.whole(1), metavar="N", help=evaluations_help)
    group.add_argument("--max-seconds", type=float, metavar="S", help="stop after so many seconds")


def run(args: argparse.Namespace, progress: bool | None) -> tuple[Result, Path | None]:
    """Sample the log-density that a function in a Python file computes, or a model, and write a report.

    Of several processes only the first one writes, and returns where.
    """
    mesh = devices.make_mesh(args)
    method = inputs.make_method(args.method, {name: getattr(args, name) for name in inputs.OPTIONS if name in args})
    shape, key = args.shape or (args.dim and (args.dim,)), jax.random.key(args.seed)
    target = model.load_target(args.target, shape, args.initial, args.data, key)
    chosen = {"num_particles": args.num_particles} if "num_particles" in args else {}
    names = {
        "logdensity_fn": args.target,
        "initial": "--initial",
        "num_particles": "--particles",
        "checkpoint": "--checkpoint",
        "max_seconds": "--max-seconds",
        "batch_size": "--batch-size",
    }
    checkpoint = inputs.make_checkpoint(args.checkpoint, getattr(args, "checkpoint_every", None), args.resume)
    recorder = None if args.processes else report_command.recorder(args.frames, method)
    with inputs.misuse(names):
        initial = target.initial
        if args.scouted:
            initial = pgps.scouted(target.logdensity_fn, initial, key=jax.random.fold_in(key, 1))
        result = pgps.sample(
            target.logdensity_fn,
            initial,
            key=key,
            method=method,
            progress=progress,
            callback=target.watched(recorder),
            checkpoint=checkpoint,
            max_evaluations=args.max_evaluations,
            max_seconds=args.max_seconds,
            mesh=mesh,
            batch_size=args.batch_size,
            **chosen,
        )
        result = target.constrained(result)
    if jax.process_index() > 0:
        return result, None
    folder = args.out or inputs.next_free("sample")
    with inputs.writing(folder):
        report = reporting.save_run(result, folder, args.asked, recorder and recorder.recording())
        config.write(folder, args.parser, args)
    return result, report
