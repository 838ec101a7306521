import importlib.metadata
import platform
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def test_constraints_leave_no_release_of_this_python_without_packages():
    first = ".".join([*platform.python_version_tuple()[:2], "0"])
    lines = [Requirement(line) for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    at_first = [line for line in lines if line.marker and line.marker.evaluate({"python_full_version": first})]
    if not at_first:
        pytest.skip(f"constraints.txt is not for Python {first} on this system")
    for line in at_first:
        installed = importlib.metadata.distribution(line.name)
        if installed.version in line.specifier:
            assert first in SpecifierSet(str(installed.metadata.json.get("requires_python", ""))), line
