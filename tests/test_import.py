"""Importing the library is light: no extra, nothing slow, and no change of JAX's settings."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time
import jax, equinox, optax
before, seconds = jax.config.jax_enable_x64, [time.process_time()]
import pgps
seconds.append(time.process_time() - seconds[0])
heavy = ["matplotlib", "jinja2", "rich", "sklearn", "xarray", "arviz", "numpyro", "pymc", "blackjax", "scipy.stats"]
found = [name for name in heavy if name in sys.modules]
print(json.dumps([found, before == jax.config.jax_enable_x64, seconds]))
"""


def test_no_extra_is_imported_and_no_time_is_lost():
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found, unchanged, seconds = json.loads(made.stdout)
    assert found == []
    assert unchanged
    # Of the processor, and next to what JAX, Equinox and Optax take: machines differ, and a busy one takes 2.5 s in
    # all. Packages without byte code take 4.6.
    of_others, own = seconds
    assert own < 1.25 * of_others
    assert of_others + own < 4.0
