"""Print the exact versions of what `pgps[dev]` stands for in this environment, as constraints for pip.

They hold for the Python and the system that they were tested with, and say nothing to others. A version that the first
release of this Python cannot have, 3.11.0 for one, holds from the tested release on:

    .venv/bin/python tools/constraints.py > constraints.txt
"""

import importlib.metadata
import platform
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def requirements(name: str) -> list[str]:
    """What a distribution needs, with markers for its extras; of pgps, what pyproject.toml says now."""
    if name != "pgps":
        return importlib.metadata.requires(name) or []
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    return project["dependencies"] + [f'{text} ; extra == "{extra}"' for extra, texts in extras for text in texts]


def versions(name: str, extras: frozenset[str], seen: set[tuple]) -> Iterator[tuple[str, str]]:
    """The version of each distribution that a distribution with these extras needs, and of what those need."""
    for requirement in map(Requirement, requirements(name)):
        needed, inner = canonicalize_name(requirement.name), frozenset(requirement.extras)
        applies = any(not requirement.marker or requirement.marker.evaluate({"extra": e}) for e in extras | {""})
        if not applies or (needed, inner) in seen:
            continue
        seen.add((needed, inner))
        if needed != "pgps":
            yield needed, importlib.metadata.version(needed)
        yield from versions(needed, inner, seen)


def marker(name: str) -> str:
    """Where the installed version of a distribution is asked for."""
    release, minor = platform.python_version(), ".".join(platform.python_version_tuple()[:2])
    here = f'python_version == "{minor}" and sys_platform == "{sys.platform}"'
    needs = SpecifierSet(importlib.metadata.metadata(name).get("Requires-Python", ""))
    return here if f"{minor}.0" in needs else f'{here} and python_full_version >= "{release}"'


def main() -> None:
    """Print one line for each distribution."""
    print(f"# Made by tools/constraints.py with Python {platform.python_version()}.")
    for name, version in sorted(set(versions("pgps", frozenset({"dev"}), set()))):
        print(f"{name}=={version} ; {marker(name)}")


if __name__ == "__main__":
    main()
