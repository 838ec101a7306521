"""`pgps report`, and how `pgps sample` records what its report shows: it translates options."""

import argparse

from pgps import _cli_inputs as inputs
from pgps import reporting
from pgps.methods import PGPS, AbstractMethod
from pgps.steppers import Fixed

EXAMPLES = """\
  pgps report runs/sample-1
  pgps report runs/sample-1 --compare runs/sample-2
"""

# Beyond so many steps, stopping after each of them to look costs more than compiling does.
_MOST_STEPS = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the options of `pgps report`."""
    parser.add_argument(
        "folder", type=inputs.path, metavar="DIR", help="a folder that pgps sample or Result.save wrote"
    )
    parser.add_argument(
        "--compare", type=inputs.path, nargs="+", default=[], metavar="OTHER", help="other runs' folders, up to three"
    )
    out_help = "where to write (default: report.html in DIR, or comparison.html with --compare)"
    parser.add_argument("--out", type=inputs.path, metavar="FILE", help=out_help)
    parser.add_argument("--quiet", action="store_true", help="print the path of the page and no more")


def add_frames_option(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `pgps sample` the option of its animation."""
    frames_help = (
        f"moments in the report's animation, at most; recording costs milliseconds a step, 0 records none "
        f"(default: %(default)s, or 0 if it is known that there will be more than {_MOST_STEPS:,} steps)"
    )
    whole = inputs.whole(0, 1000)
    parser.add_argument("--frames", type=whole, default=reporting.MOST_FRAMES, metavar="N", help=frames_help)


def recorder(num_frames: int, method: AbstractMethod) -> reporting.Recorder | None:
    """What records a run's particles, if anything does."""
    if isinstance(method, PGPS):
        many = isinstance(method.stepper, Fixed) and method.stepper.dt * _MOST_STEPS < 1
    else:
        many = getattr(method, "num_steps", 0) > _MOST_STEPS
    return None if num_frames == 0 or many else reporting.Recorder(num_frames)


def run(args: argparse.Namespace) -> int:
    """Make a run's report again from its folder, or set several runs side by side."""
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise inputs.MisuseError(f"--out {args.out} must lie in a folder that exists; make it, or choose another")
    try:
        if args.compare:
            path, verdict = reporting.compare_runs([args.folder, *args.compare], args.out)
        else:
            path, verdict = reporting.rebuild_run(args.folder, args.out)
    except (ValueError, OSError) as error:
        raise inputs.MisuseError(" ".join(str(error).split())) from error
    if not args.quiet:
        print(f"{verdict.headline} {verdict.text}")
    print(path)
    return 0
