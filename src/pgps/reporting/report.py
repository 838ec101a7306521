"""One self-contained HTML file: what was asked, a verdict, measurements, pictures, settings and versions."""

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pgps.reporting.charts import Drawing

_KINDS = {"png": "image/png", "gif": "image/gif"}


@dataclass(frozen=True)
class Verdict:
    """The report's first line: how good the news is, the news, and the reason for it."""

    level: Literal["good", "care", "bad"]
    headline: str
    text: str


@dataclass(frozen=True)
class Image:
    """A picture, embedded in the report; `alternative` says in words what it shows."""

    data: bytes
    kind: Literal["png", "gif"]
    caption: str
    alternative: str

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return f"data:{_KINDS[self.kind]};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class Table:
    """A table of texts; its first column names the rows."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = "Measured"
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Charts:
    """Drawings under one heading, beside each other.

    Attributes:
        title: The heading.
        note: What to know about them.
        drawings: The drawings.
        legend: Names of what the colours and lines stand for.
        width: The width in inches of a drawing that stands alone, and scrolls where there is no room for it.
    """

    title: str
    note: str
    drawings: Sequence[Drawing]
    legend: Sequence[str] = ()
    width: float | None = None
    kind: ClassVar[str] = "charts"


@dataclass(frozen=True)
class Animation:
    """Particles along t, with a slider.

    Attributes:
        note: What to know about it.
        frames: `Recording.payload()`, and with it `names` of the coordinates, `notes` on each moment, and `marks`: the
            modes' centres.
    """

    note: str
    frames: Mapping[str, Any]
    kind: ClassVar[str] = "animation"


@dataclass(frozen=True)
class Report:
    """All that a report shows.

    Attributes:
        title: The heading.
        asked: The command that was run.
        verdict: Whether to trust the result.
        facts: Names and values of the main figures.
        warnings: What should be doubted, one sentence each.
        tables: Further figures.
        images: The pictures.
        text: Preformatted text, such as `Result.summary()`.
        versions: The versions of what it was made with.
        settings: Whatever is needed to repeat the run, as plain data.
        reasons: The reasons for the verdict, one sentence each.
        sections: What is shown below the main figures, from top to bottom.
        kind: What the page is about, so that it is told from others.
    """

    title: str
    asked: str
    verdict: Verdict
    facts: Mapping[str, str]
    warnings: Sequence[str]
    tables: Sequence[Table]
    images: Sequence[Image]
    text: str
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    reasons: Sequence[str] = ()
    sections: Sequence[Table | Charts | Animation] = ()
    kind: str = "report"


def render(report: Report) -> str:
    """The report as HTML; every text in it is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pgps", "reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (Path(__file__).parent / "report.js").read_text(encoding="utf-8")
    script_hash = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    settings = json.dumps(report.settings, indent=2)
    template = environment.get_template("report.html.j2")
    return template.render(report=report, settings=settings, script=script, script_hash=script_hash)


def replace_page(path: Path, page: str, kind: str) -> Path:
    """Write a page, all or nothing, where there is none yet or an earlier one of the same kind."""
    if path.exists() and not (path.is_file() and f'content="pgps {kind}"' in path.read_text("utf-8", "replace")[:2000]):
        raise FileExistsError(f"{path} is in the way, and is no page that pgps report wrote; move it elsewhere")
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return path
