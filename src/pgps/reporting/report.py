"""One self-contained HTML file: what was asked, a verdict, measurements, pictures, settings and versions."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    settings = json.dumps(report.settings, indent=2)
    return environment.get_template("report.html.j2").render(report=report, settings=settings)
