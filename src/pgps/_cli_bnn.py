"""`pgps bnn`: it translates options, and calls the experiment's own module."""

import argparse
import inspect
import sys

from pgps import _cli_inputs as inputs
from pgps.result import Status

EXAMPLES = """\
  pgps bnn digits                                   20 networks on scikit-learn's digits, no download
  pgps bnn heart --method svgd --particles 100      from PGPS_DATA_DIR, or from OpenML
"""
_NUMBERS = {
    "num_particles": ("--particles", inputs.whole(2, inputs.LARGEST), "how many networks"),
    "hidden": ("--hidden", inputs.whole(1, inputs.LARGEST), "hidden units"),
    "alpha": ("--alpha", float, "the path's alpha, of pgps and training-free"),
    "beta": ("--beta", float, "the path's beta, of pgps and training-free"),
    "iterations": ("--iterations", inputs.whole(40, inputs.LARGEST), "Langevin steps, or steps of other methods"),
    "rate": ("--rate", float, "learning rate of the mean loss, from which step sizes are made"),
    "batch_size": ("--batch-size", inputs.whole(1, inputs.LARGEST), "rows of a minibatch"),
    "prior_scale": ("--prior-scale", float, "the prior's standard deviation"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the command's options, with the defaults of the function behind it."""
    from pgps.experiments import classify, classify_run

    defaults = inspect.signature(classify_run.run).parameters
    parser.add_argument("dataset", metavar="DATASET", help="digits, breast-cancer, wine; sonar, heart, mnist, ...")
    parser.add_argument(
        "--method", choices=list(classify.METHODS), default=defaults["method"].default, help="(default: %(default)s)"
    )
    for name, (flag, kind, text) in _NUMBERS.items():
        default = defaults[name].default
        metavar = "X" if kind is float else "N"
        parser.add_argument(
            flag, dest=name, type=kind, default=default, metavar=metavar, help=f"{text} (default: %(default)s)"
        )


def run(args: argparse.Namespace) -> int:
    """Sample Bayesian neural networks on a data set, and write a report of how far to trust them."""
    from pgps.experiments import classify_run

    inputs.check_output(args.out)
    chosen = {name: getattr(args, name) for name in _NUMBERS}
    with inputs.misuse({"name": "DATASET"} | {name: flag for name, (flag, *_) in _NUMBERS.items()}):
        try:
            found = classify_run.run(
                args.dataset,
                seed=args.seed,
                method=args.method,
                progress=False if args.quiet else None,
                **chosen,
            )
        except (FileNotFoundError, ModuleNotFoundError) as error:
            raise inputs.MisuseError(str(error)) from None
    folder = args.out or inputs.next_free("bnn")
    with inputs.writing(folder):
        report = classify_run.save(found, folder, asked=args.asked)
    if not args.quiet:
        for text, value in found.table():
            print(f"{text:<32}{value:>10}")
    for doubt in found.result.warnings:
        print(f"pgps: warning: {doubt}", file=sys.stderr)
    print(report)
    return 0 if found.result.status == Status.COMPLETED else 1
