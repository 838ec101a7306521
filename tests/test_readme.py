"""The documents' own examples: every python block of README.md and docs/*.md runs, and prints what is shown below it.

The blocks of one file share a namespace, as a reader's session would. Numbers may differ from machine to machine, so
outputs are compared without them. Commands are parsed as the command line parses them, since some of them take hours;
those of `pgps sample` whose file is shown in a document go as far as the sampler.
"""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pgps
from pgps import _cli_config, cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\S*)", re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```(?:python|text)\n# (?P<name>\w+\.(?:py|csv))\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)
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


def shell_commands() -> list[str]:
    """The lines of all sh blocks, each once."""
    texts = [block for path in DOCUMENTS for block in SHELL.findall(path.read_text("utf-8"))]
    lines = "".join(texts).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))))


@pytest.fixture
def shown_files(tmp_path, monkeypatch) -> None:
    """A folder with the files that documents show, under the names in their first lines."""
    monkeypatch.chdir(tmp_path)
    for path in DOCUMENTS:
        for file in FILE.finditer(path.read_text("utf-8")):
            Path(file["name"]).write_text(file["text"])
    Path("runs/sample-1").mkdir(parents=True)
    Path("runs/sample-1/config.toml").write_text('target = "banana.py:logdensity"\ndim = 2\n')


def parse(words: list[str]) -> None:
    """Parse a command of `pgps` as `pgps` itself does."""
    parser = cli._parser()
    if words[:1] == ["sample"]:
        words[1:] = _cli_config.expanded(cli._commands(parser)["sample"], words[1:])
    parser.parse_args(words)


@pytest.mark.usefixtures("shown_files")
@pytest.mark.parametrize("command", shell_commands())
def test_commands_are_such(command: str):
    program, *words = shlex.split(command)
    match program:
        case "pgps":
            parse(words)
        case "make":
            assert re.search(rf"^{words[0]}: ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        case "python":
            assert (ROOT / words[0]).is_file()
        case "pip":
            asked = re.fullmatch(r"\.\[(.*)\]", words[-1])
            assert asked is not None
            project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
            assert set(asked[1].split(",")) <= set(project["optional-dependencies"])
        case "source":
            assert words == [".venv/bin/activate"]
        case _:
            pytest.fail(f"no test knows what to do with {program}")


@pytest.mark.usefixtures("shown_files")
@pytest.mark.parametrize(
    "command", [text for text in shell_commands() if text.startswith("pgps sample") and "--processes" not in text]
)
def test_commands_reach_the_sampler_with_the_files_that_documents_show(command: str, monkeypatch, capsys):
    def stop(*_args: Any, num_particles: int = 0, **_options: Any):
        raise ValueError(f"sampler reached {num_particles}")

    monkeypatch.setattr(pgps, "sample", stop)
    assert cli.main(shlex.split(command)[1:]) == 2
    assert "sampler reached" in capsys.readouterr().err


def test_no_block_of_code_is_left_out():
    kinds = {kind for path in DOCUMENTS for kind in FENCE.findall(path.read_text("utf-8"))}
    assert kinds == {"", "python", "text", "sh", "bibtex", "{eval-rst}", "{include}", "{toctree}"}


def test_readme_example_is_short():
    example = next(BLOCK.finditer((ROOT / "README.md").read_text("utf-8")))["code"]
    assert len(example.strip().splitlines()) < 12
