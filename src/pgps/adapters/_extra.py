"""The extras that adapters need: they are imported where they are used, and named where they are missing."""

import importlib
import importlib.util
from typing import Any


def load(module: str, extra: str) -> Any:
    """Import a module of an extra, or raise with the command that installs it."""
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"this needs {package}, which is not installed; run: pip install 'pgps[{extra}]'")
    return importlib.import_module(module)
