"""Options from a TOML file: `--config run.toml` stands for the options in it, and those beside it go before them."""

import argparse
import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgps import _cli_inputs as inputs

FILE = "config.toml"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give the parser the option itself."""
    config_help = (
        f"options from a TOML file, as in dim = 2; those on the command line go before. {FILE} in the output folder "
        "is such a file"
    )
    parser.add_argument("--config", type=inputs.path, metavar="FILE.toml", help=config_help)


def expanded(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The arguments with the file's options in place of `--config`."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--config", type=inputs.path)
    try:
        known, rest = early.parse_known_args(list(argv))
    except argparse.ArgumentError:
        # The parser itself will say what is wrong.
        return list(argv)
    if known.config is None:
        return list(argv)
    settings, flags = _read(known.config), _flags(parser)
    target = settings.pop("target", None)
    tokens: list[str] = []
    for name, value in settings.items():
        if name not in flags:
            near = difflib.get_close_matches(name, flags, n=1, cutoff=0.0)
            raise inputs.MisuseError(f"--config {known.config}: {name!r} is no option; did you mean {near[0]!r}?")
        if _given(flags[name], rest):
            continue
        tokens += _tokens(known.config, flags[name], value)
    if target is not None and not any(_is_target(token) for token in rest):
        tokens = [str(target), *tokens]
    return [*tokens, *rest]


def write(folder: Path, parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Write the options of a run into its folder, so that `--config` makes the same run again."""
    lines = [f"target = {json.dumps(args.target)}"]
    for name, action in _flags(parser).items():
        value = getattr(args, action.dest, None)
        if name in ("out", "config", "quiet") or value is None or value is False:
            continue
        lines.append(f"{name} = {_toml(value)}")
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise inputs.MisuseError(
            f"--config {path} cannot be read ({inputs.first_line(error)}); check the file"
        ) from error


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Options by their names in a file: the flags without dashes in front."""
    return {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option not in ("--help", "--config")
    }


def _given(action: argparse.Action, argv: Sequence[str]) -> bool:
    """Whether the command line has this option itself; a particle has one shape, however it is told."""
    names = {"--dim", "--shape"} if action.dest in ("dim", "shape") else set(action.option_strings)
    return any(token.partition("=")[0] in names for token in argv)


def _is_target(token: str) -> bool:
    return not token.startswith("-") and ".py:" in token


def _tokens(path: Path, action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[0]
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise inputs.MisuseError(f"--config {path}: {flag[2:]!r} must be true or false, got {value!r}")
        return [flag] if value else []
    if isinstance(value, bool | dict):
        raise inputs.MisuseError(f"--config {path}: {flag[2:]!r} must be a number or a text, got {value!r}")
    text = ",".join(str(part) for part in value) if isinstance(value, list) else str(value)
    # One token, since a value may begin with a dash.
    return [f"{flag}={text}"]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return json.dumps(",".join(str(part) for part in value))
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))
