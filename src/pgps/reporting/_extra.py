"""The extra `report`: matplotlib, Pillow and jinja2. They are imported where they are used."""

import importlib.util

_PACKAGES = {"matplotlib": "matplotlib", "PIL": "pillow", "jinja2": "jinja2"}


def check_installed() -> None:
    """Raise unless all that a report needs can be imported; call it before a long run, not after it."""
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ModuleNotFoundError(
            f"the report needs {' and '.join(missing)}, not found here; run: pip install 'pgps[report]'"
        )
