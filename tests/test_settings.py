"""Components as plain data."""

import json
import subprocess
import sys
from functools import partial

import pgps
from pgps.settings import describe

PARTIAL = """
import json
from functools import partial
from pgps.settings import describe

def density(x, mean, scale=1.0):
    return -(((x - mean) / scale) ** 2)

print(json.dumps(describe(partial(density, 2.0, scale=3.0))))
"""


def test_a_partial_function_is_the_same_in_every_process():
    """Else a benchmark that was interrupted would take its own records for those of another one."""
    told = {subprocess.run([sys.executable, "-c", PARTIAL], capture_output=True, text=True).stdout for _ in range(2)}
    [text] = told
    assert json.loads(text) == {"function": "__main__.density", "arguments": [2.0], "scale": 3.0}


def test_components_inside_partial_functions_are_described():
    told = describe(partial(dict, key=pgps.paths.Geometric()))
    assert told["key"]["class"].endswith("Geometric")
    assert json.loads(json.dumps(told)) == told
