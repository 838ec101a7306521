"""Importing the library is light: no extra, nothing slow, and no change of JAX's settings."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import jax
before = jax.config.jax_enable_x64
import pgps
heavy = ["matplotlib", "jinja2", "rich", "sklearn", "xarray", "arviz", "numpyro", "pymc", "blackjax", "scipy.stats"]
print(json.dumps([[name for name in heavy if name in sys.modules], before == jax.config.jax_enable_x64]))
"""


def test_no_extra_is_imported():
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(made.stdout) == [[], True]
