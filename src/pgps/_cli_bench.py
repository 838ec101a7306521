"""`pgps bench`: it translates options, and calls the benchmark's own module."""

import argparse
from pathlib import Path
from typing import Any

from pgps import _cli_inputs as inputs

# An option that is left out is not passed on, so that defaults are stated once, in the library.
_UNSET: dict[str, Any] = {"default": argparse.SUPPRESS}

# Options that a benchmark has besides the preset; those of steps have --repeats.
_OWN_OPTIONS = {
    "evidence": ("targets", "samplers", "seeds"),
    "gauntlet": ("targets", "samplers", "seeds"),
    "calibration": (),
    "resume": (),
    "fuzz": ("inputs",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the benchmarks' options."""
    steps, others = ("training-step", "baseline-step", "bnn-step"), ("scaling", "calibration", "resume", "fuzz")
    names = [*steps, "evidence", "gauntlet", *others]
    parser.add_argument("benchmark", choices=names, help="what to measure")
    parser.add_argument("--preset", choices=["full", "smoke"], default="full", help="how much (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=inputs.whole(1), metavar="N", help="of a step: measurements of each", **_UNSET
    )
    inputs_help = "of fuzz: malformed inputs, which --seed decides (default: 10,000, smoke 200)"
    parser.add_argument("--inputs", type=inputs.whole(1), metavar="N", help=inputs_help, **_UNSET)
    group = parser.add_argument_group("options of evidence and gauntlet, whose --out may be a folder to go on in")
    group.add_argument("--targets", type=inputs.names, metavar="LIST", help="with commas between them", **_UNSET)
    samplers_help = (
        "exact, scouted, zero, blackjax, nuts; zero-0.5 or blackjax-0.99 has another ladder than 0.9, and "
        "blackjax-0.9x10 ten moves per temperature instead of five"
    )
    group.add_argument("--samplers", type=inputs.names, metavar="LIST", help=samplers_help, **_UNSET)
    group.add_argument("--seeds", type=inputs.seeds, metavar="LIST", help="as in 0,1,2 or 0-9", **_UNSET)


def run(args: argparse.Namespace) -> int:
    """Measure speed, scaling, calibration or known log evidences; kill and resume runs; try malformed inputs (fuzz)."""
    from pgps.benchmarks import baseline_step, bnn_step, calibration, fuzz, resume, scaling, training_step

    own = _OWN_OPTIONS.get(args.benchmark, ("repeats",))
    for name in ("repeats", "inputs", "targets", "samplers", "seeds"):
        if name in args and name not in own:
            raise inputs.MisuseError(f"--{name} does not apply to {args.benchmark}; leave it out")
    if args.benchmark in ("evidence", "gauntlet"):
        return _evidence(args)
    benchmark: Any = {
        "training-step": training_step,
        "baseline-step": baseline_step,
        "bnn-step": bnn_step,
        "resume": resume,
        "fuzz": fuzz,
        "scaling": scaling,
        "calibration": calibration,
    }[args.benchmark]
    inputs.check_output(args.out)
    chosen: dict[str, Any] = {"preset": benchmark.PRESETS[args.preset]}
    chosen |= {name: getattr(args, name) for name in ("repeats", "inputs") if name in args}
    if benchmark is fuzz:
        chosen["seed"] = args.seed
    folder = args.out or inputs.next_free("bench")
    with inputs.writing(folder):
        record = benchmark.run(folder, args.quiet, **chosen)
        _tell(args, folder, benchmark.format_table(record), record)
    return 1 if record.get("failures") else 0


def _evidence(args: argparse.Namespace) -> int:
    from pgps.benchmarks import evidence, evidence_page

    chosen = {name: getattr(args, name) for name in ("targets", "samplers", "seeds") if name in args}
    folder = args.out or Path("runs") / args.benchmark / args.preset
    with inputs.misuse({name: f"--{name}" for name in ("targets", "samplers", "seeds", "out")}):
        try:
            suite = evidence.GAUNTLET if args.benchmark == "gauntlet" else evidence.EVIDENCE
            cells = evidence.plan(args.preset, **chosen, suite=suite)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            raise inputs.MisuseError(str(error)) from None
        evidence.check_folder(folder, cells)
    with inputs.writing(folder):
        record = evidence.run(folder, args.quiet, cells, args.asked)
        _tell(args, folder, evidence_page.text_table(record), record)
    return 0


def _tell(args: argparse.Namespace, folder: Path, table: str, record: dict[str, Any]) -> None:
    """Print the table and where it is kept: as a report, if the extra for it is there."""
    from pgps import reporting
    from pgps.benchmarks.page import write_report

    if not args.quiet:
        print(table)
    try:
        reporting.check_installed()
    except ModuleNotFoundError:
        print(folder / "result.json")
        return
    print(write_report(folder, args.benchmark, args.asked, table, record))
