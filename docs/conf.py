"""Sphinx's configuration. `make docs` builds with warnings as errors."""

import typing

from docutils import nodes
from latex2mathml.converter import convert

typing.GENERATING_DOCUMENTATION = "pgps"  # jaxtyping's switch for short names of types

import jaxtyping  # noqa: E402

import pgps  # noqa: E402

jaxtyping.Scalar.__qualname__ = "Scalar"

project = "pgps"
author = project_copyright = "The pgps developers"
version = release = pgps.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"pgps {release}"
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True


def escape_bars(*args):
    """A bar in a docstring is an absolute value, not reStructuredText."""
    lines = args[-1]
    lines[:] = [line.replace("|", r"\|") for line in lines]


def mathml_renderer(display):
    """Write formulas as MathML, which browsers show without a script from elsewhere."""

    def visit(translator, node):
        mathml = convert(node.astext(), display=display)
        # As an identifier, which the converter makes of it, ln would stick to its neighbours.
        translator.body.append(mathml.replace("<mi>ln</mi>", '<mo lspace="0.17em" rspace="0.17em">ln</mo>'))
        raise nodes.SkipNode

    return visit, None


def setup(app):
    app.connect("autodoc-process-docstring", escape_bars)
    app.add_html_math_renderer("mathml", mathml_renderer("inline"), mathml_renderer("block"))
