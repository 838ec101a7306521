"""Importing the library is light: no extra, nothing slow, and no change of JAX's settings."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time
import jax
before = jax.config.jax_enable_x64
import pgps
seconds = time.process_time()
heavy = ["matplotlib", "jinja2", "rich", "sklearn", "xarray", "arviz", "numpyro", "pymc", "blackjax", "scipy.stats"]
found = [name for name in heavy if name in sys.modules]
print(json.dumps([found, before == jax.config.jax_enable_x64, seconds]))
"""


def test_no_extra_is_imported_and_no_time_is_lost():
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found, unchanged, seconds = json.loads(made.stdout)
    assert found == []
    assert unchanged
    # Of the processor, JAX and the interpreter included: what else the machine does is not measured.
    assert seconds < 2.0
