"""Fixtures: one that every file gets, some that a test may ask for; and a folder of programs for the session."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import jax
import pytest

# Programs that another file, worker or subprocess of this session has compiled are read instead.
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


# Without LLVM's optimisations XLA's older code generator compiles in half the time of its newer one.
OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"


def pytest_configure(config: pytest.Config) -> None:
    """The first process makes the folder and removes it; workers and subprocesses find it in their environment."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    flags = f"{os.environ.get('XLA_FLAGS', '')} {OLDER_EMITTERS}".strip()
    # An XLA that does not know a flag ends the process: another one asks first.
    probe = [sys.executable, "-c", "import jax; jax.numpy.zeros(1)"]
    if subprocess.run(probe, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, check=False).returncode == 0:
        os.environ["XLA_FLAGS"] = flags
    folder = tempfile.mkdtemp(prefix="pgps-programs-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ |= CACHE | {"JAX_COMPILATION_CACHE_DIR": folder}
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# Files that take longest come first, so that no worker waits for another at the end.
SLOWEST = (
    "test_spread.py",
    "test_examples.py",
    "test_uci.py",
    "test_readme.py",
    "test_exact.py",
    "test_figures.py",
    "test_sample.py",
    "test_resume.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; with `--no-loadscope-reorder` workers take them as they come."""
    items.sort(key=lambda item: item.path.name not in SLOWEST)


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs are compiled without LLVM's optimisations, and dropped after each file.

    A file that has `OPTIMISED = True` is compiled with them, since it runs longer than it compiles, or compares bits of
    two programs. Each program holds memory maps, of which Linux allows a process 65,530 (vm.max_map_count): a worker
    that kept them all would end in a segmentation fault inside the compiler.
    """
    fast = not getattr(request.module, "OPTIMISED", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(fast).lower())
        jax.config.update("jax_disable_most_optimizations", fast)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Double precision within one test; arrays and laws have to be made inside it."""
    with jax.enable_x64(True):
        yield
