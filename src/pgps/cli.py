"""The command line. It only translates: every command calls one public function of the library."""

import argparse
import contextlib
import inspect
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import jax

import pgps
from pgps import _cli_bench as bench_command
from pgps import _cli_bnn as bnn_command
from pgps import _cli_config as config
from pgps import _cli_devices as devices
from pgps import _cli_inputs as inputs
from pgps import _cli_report as report_command
from pgps import _cli_sample as sample_command
from pgps import reporting
from pgps.programs import keep_for_later
from pgps.result import PGPSWarning, Status

_REPRODUCE_EXAMPLES = """\
  pgps reproduce --list
  pgps reproduce fig4 --preset smoke
  pgps reproduce all --preset paper --out results/reproduction
"""
_EXAMPLES = f"examples:\n  pgps demo\n{sample_command.EXAMPLES}{report_command.EXAMPLES}{_REPRODUCE_EXAMPLES}"
_EXAMPLES += "  pgps bench training-step\n"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        """Raise, and let `main` print it."""
        raise inputs.MisuseError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, 1 if a run did not reach its end, 2 for misuse, 130 for Ctrl-C."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        parser, asked = _parser(), shlex.join(["pgps", *argv])
        if argv[:1] == ["sample"]:
            argv[1:] = config.expanded(_commands(parser)["sample"], argv[1:])
        inputs.check_words(argv)
        args = parser.parse_args(argv, argparse.Namespace(asked=asked))
        if getattr(args, "threads", None) is not None:
            devices.limit_threads(args.threads)
        keep_for_later()
        return args.command(args)
    except inputs.MisuseError as error:
        print(f"pgps: error: {inputs.one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pgps: interrupted", file=sys.stderr)
        return 130


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


@cache
def _parser() -> argparse.ArgumentParser:
    layout: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    about = "Path-guided particle-based sampling of hard, multimodal densities."
    parser = _Parser(prog="pgps", description=about, epilog=_EXAMPLES, **layout)
    parser.add_argument("--version", action="version", version=f"pgps {pgps.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="make the paper's Figure 1", description=inspect.getdoc(_demo), **layout)
    demo.set_defaults(command=_demo)

    epilog = f"examples:\n{sample_command.EXAMPLES}"
    sample = commands.add_parser(
        "sample",
        help="sample a density of your own",
        description=inspect.getdoc(sample_command.run),
        epilog=epilog,
        **layout,
    )
    sample.set_defaults(command=_sample, parser=sample)
    sample_command.add_options(sample)

    reproduce = commands.add_parser(
        "reproduce",
        help="repeat the paper's experiments",
        description=inspect.getdoc(_reproduce),
        epilog=f"examples:\n{_REPRODUCE_EXAMPLES}",
        **layout,
    )
    reproduce.set_defaults(command=_reproduce)
    _add_reproduce_options(reproduce)

    bnn = commands.add_parser(
        "bnn",
        help="sample Bayesian neural networks on a data set",
        description=inspect.getdoc(bnn_command.run),
        epilog=f"examples:\n{bnn_command.EXAMPLES}",
        **layout,
    )
    bnn.set_defaults(command=_bnn)
    bnn_command.add_options(bnn)

    bench = commands.add_parser(
        "bench", help="measure speed and accuracy", description=inspect.getdoc(bench_command.run), **layout
    )
    bench.set_defaults(command=bench_command.run)
    bench_command.add_options(bench)

    report = commands.add_parser(
        "report",
        help="make a run's report again, or compare runs",
        description=inspect.getdoc(report_command.run),
        epilog=f"examples:\n{report_command.EXAMPLES}",
        **layout,
    )
    report.set_defaults(command=_report)
    report_command.add_options(report)

    remarks = {bnn: "; of the split, too", bench: "; timings do not depend on it"}
    for command in (demo, sample, bnn, bench):
        _add_common_options(command, remarks.get(command, ""))
    return parser


def _add_common_options(parser: argparse.ArgumentParser, seed_remark: str) -> None:
    group = parser.add_argument_group("common options")
    seed_help = f"random seed (default: %(default)s){seed_remark}"
    group.add_argument("--seed", type=inputs.whole(0, 2**32 - 1), default=0, metavar="N", help=seed_help)
    group.add_argument(
        "--out", type=inputs.path, metavar="DIR", help="a new or empty folder (default: a new one in runs/)"
    )
    devices.add_threads(group)
    group.add_argument("--quiet", action="store_true", help="print the path of the report, and warnings, but no more")


def _add_reproduce_options(parser: argparse.ArgumentParser) -> None:
    item_help = "a figure, a table, as --list shows them, or all, which is all figures"
    parser.add_argument("item", nargs="?", metavar="ITEM", help=item_help)
    parser.add_argument("--list", action="store_true", help="show what there is")
    preset_help = "smoke takes seconds and shows that it works, paper has the published settings (default: %(default)s)"
    parser.add_argument("--preset", default="smoke", metavar="smoke|paper", help=preset_help)
    protocol_help = (
        "for tables: corrected, or published, which repeats the released code's flaws (default: %(default)s)"
    )
    parser.add_argument("--protocol", default="corrected", metavar="corrected|published", help=protocol_help)
    parser.add_argument(
        "--seeds", type=inputs.seeds, metavar="LIST", help="as in 0,1,2 or 0-9 (default: the item's own)"
    )
    cells_help = "of a table: only these, as in heart-*,*-pgps (default: all)"
    parser.add_argument("--cells", type=inputs.names, default=("*",), metavar="LIST", help=cells_help)
    out_help = "a new folder, or one to go on in (default: runs/reproduce/PRESET)"
    parser.add_argument("--out", type=inputs.path, metavar="DIR", help=out_help)
    jobs_help = "processes, with one thread each if there are several (default: 1)"
    parser.add_argument("--jobs", type=inputs.whole(1, 64), default=1, metavar="N", help=jobs_help)
    devices.add_threads(parser)
    parser.add_argument("--quiet", action="store_true", help="print the paths of the reports and no more")


def _demo(args: argparse.Namespace) -> int:
    """Make the paper's Figure 1: two modes, sampled by Langevin dynamics and by PGPS."""
    from pgps.experiments import demo

    _check_before_running(args)
    announce = None if args.quiet else lambda name: print(f"running {name}", file=sys.stderr)
    with _doubts_kept_for_later():
        figure = demo.run(jax.random.key(args.seed), progress=_progress(args), announce=announce)
    folder = args.out or inputs.next_free("demo")
    with inputs.writing(folder):
        report = demo.save(figure, folder, asked=args.asked, seed=args.seed)
    if not args.quiet:
        for name, *cells in (demo.TABLE_HEAD, *figure.table()):
            print(f"{name:<20}" + "".join(f"{cell:>13}" for cell in cells))
        verdict = demo.judge(figure)
        print(f"{verdict.headline} {verdict.text}")
    _print_doubts(figure.warnings)
    print(report)
    return _exit_code(*figure.runs.values())


def _sample(args: argparse.Namespace) -> int:
    _check_before_running(args)
    with _doubts_kept_for_later():
        result, report = sample_command.run(args, _progress(args))
    if report is None:
        return _exit_code(result)
    if args.quiet:
        _print_doubts(result.warnings)
    else:
        print(result.summary())
    print(report)
    return _exit_code(result)


def _reproduce(args: argparse.Namespace) -> int:
    """Repeat the paper's experiments: figures, numbers with error bars, and a verdict next to each published claim.

    What is complete is kept: run the same command again to go on after an interruption.
    """
    from pgps import experiments
    from pgps.experiments import runner
    from pgps.experiments.worker import start_workers

    if args.list:
        for name, experiment in experiments.EXPERIMENTS.items():
            print(f"{name:<18}{experiment.title}")
        return 0
    with inputs.misuse({"item": "ITEM", "protocol": "--protocol"}):
        names = experiments.find(args.item, args.protocol)
    if args.preset not in runner.PRESETS:
        raise inputs.MisuseError(f"--preset must be one of {', '.join(runner.PRESETS)}, got {args.preset!r}")
    _check_report_extra()
    folder = args.out or Path("runs") / "reproduce" / args.preset
    asked = []
    with inputs.misuse({"seeds": "--seeds", "out": "--out", "only": "--cells"}):
        for name in names:
            experiment = experiments.EXPERIMENTS[name]
            seeds = args.seeds or experiment.seeds(args.preset)
            own = folder if args.item != "all" and args.out else folder / name
            runner.check_seeds(seeds)
            runner.check_only(experiment, args.preset, args.cells)
            runner.check_folder(name, experiment, args.preset, seeds, own)
            asked.append((name, experiment, seeds, own))
    announce = None if args.quiet else lambda line: print(line, file=sys.stderr, flush=True)
    for name, experiment, seeds, own in asked:
        workers = (
            partial(start_workers, name, args.preset, seeds, own, args.cells, args.jobs) if args.jobs > 1 else None
        )
        with inputs.writing(own), _doubts_kept_for_later():
            findings, report = runner.reproduce(
                name,
                experiment,
                args.preset,
                seeds,
                own,
                command=args.asked,
                only=args.cells,
                workers=workers,
                progress=_progress(args),
                announce=announce,
            )
        if not args.quiet:
            if args.preset == "smoke":
                print(f"{name}: sizes for testing, which say nothing about the claims")
            for claim in findings.claims:
                print(f"{name}: {claim.verdict}: {claim.published}; measured: {claim.measured}")
        print(report)
    return 0


def _bnn(args: argparse.Namespace) -> int:
    _check_report_extra()
    with _doubts_kept_for_later():
        return bnn_command.run(args)


def _report(args: argparse.Namespace) -> int:
    _check_report_extra()
    return report_command.run(args)


def _check_before_running(args: argparse.Namespace) -> None:
    _check_report_extra()
    inputs.check_output(args.out)


def _check_report_extra() -> None:
    try:
        reporting.check_installed()
    except ModuleNotFoundError as error:
        raise inputs.MisuseError(str(error)) from None


def _progress(args: argparse.Namespace) -> bool | None:
    return False if args.quiet else None


@contextlib.contextmanager
def _doubts_kept_for_later() -> Iterator[None]:
    """Hold back Python's own printing of doubts: they are stored in results, and shown from there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PGPSWarning)
        yield


def _print_doubts(doubts: Sequence[str]) -> None:
    for doubt in doubts:
        print(f"pgps: warning: {doubt}", file=sys.stderr)


def _exit_code(*results: pgps.Result) -> int:
    return 0 if all(result.status == Status.COMPLETED for result in results) else 1
