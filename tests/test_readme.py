"""The documents' own examples: every python block of README.md and docs/*.md runs, and prints what is shown below it.

The blocks of one file share a namespace, as a reader's session would. Numbers may differ from machine to machine, so
outputs are compared without them.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(e[-+]?\d+)?")


def shape(text: str) -> list[str]:
    """A text's words, with every number replaced by the same sign; NumPy fills up short ones in front of a bracket."""
    return re.sub(r"\s+\]", "]", NUMBER.sub("#", text)).split()


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if BLOCK.search(path.read_text("utf-8"))],
    ids=lambda path: path.stem,
)
def test_examples_run_and_print_what_the_document_shows(document: Path):
    text = document.read_text("utf-8")
    namespace = {"__name__": document.stem}
    for block in BLOCK.finditer(text):
        # Empty lines in front make the line numbers of a traceback those of the document.
        code = "\n" * text.count("\n", 0, block.start("code")) + block["code"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, document, "exec"), namespace)
        if block["output"] is not None:
            assert shape(printed.getvalue()) == shape(block["output"])


def test_readme_example_is_short():
    example = next(BLOCK.finditer((ROOT / "README.md").read_text("utf-8")))["code"]
    assert len(example.strip().splitlines()) < 12
