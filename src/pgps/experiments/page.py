"""An experiment's findings as a page: in Markdown for the documentation, and as a report in HTML."""

from typing import Any, Literal

from pgps import reporting
from pgps.experiments.base import Findings

_VERDICTS: dict[str, tuple[Literal["good", "care", "bad"], str]] = {
    "reproduced": ("good", "Reproduced."),
    "partly": ("care", "Partly reproduced."),
    "not reproduced": ("bad", "Not reproduced."),
    "open": ("care", "Open: too little was run to judge what was published."),
}
_CLAIM_HEAD = ("published", "measured", "verdict", "why")


def markdown_page(title: str, findings: Findings, record: dict[str, Any]) -> str:
    """The page in Markdown; pictures are named relative to it."""
    lines = [
        f"## {title}",
        "",
        f"**{_VERDICTS[findings.verdict][1]}** `{record['command']}`, {_conditions(record)}.",
        "",
        f"![{findings.caption}](figure.png)",
        "",
        findings.caption,
        "",
    ]
    if findings.claims:
        lines += _table(_CLAIM_HEAD, _claims(findings))
    for table in findings.tables:
        lines += ["", f"{table.caption}:", "", *_table(table.head, table.rows)]
    lines += ["", *[f"- {note}" for note in _notes(findings, record)]]
    return "\n".join(lines).rstrip() + "\n"


def html_page(title: str, findings: Findings, record: dict[str, Any], picture: bytes) -> str:
    """The page as a self-contained report."""
    claims = reporting.Table("What was published, and what was measured", _CLAIM_HEAD, _claims(findings))
    return reporting.render(
        reporting.Report(
            title=title,
            asked=record["command"],
            verdict=reporting.Verdict(*_VERDICTS[findings.verdict], _conditions(record) + "."),
            facts={
                "Preset": record["preset"],
                "Seeds": ", ".join(map(str, record["seeds"])),
                "Settings": str(len(record["cells"])),
                "Seconds": f"{record['seconds']:.0f}",
            },
            warnings=(),
            tables=((claims,) if findings.claims else ()) + tuple(map(_with_bold, findings.tables)),
            images=(reporting.Image(picture, "png", findings.caption, findings.caption),),
            text="\n".join(_notes(findings, record)),
            versions=record["versions"],
            settings=record,
        )
    )


def _with_bold(table: reporting.Table) -> reporting.Table:
    """A table for HTML: Markdown's stars become bold."""
    from markupsafe import Markup

    def cell(text: str) -> str:
        if not text.startswith("**"):
            return text
        strong, rest = text[2:].split("**", 1)
        return Markup("<b>{}</b>{}").format(strong, rest)

    return reporting.Table(table.caption, table.head, [tuple(map(cell, row)) for row in table.rows])


def _conditions(record: dict[str, Any]) -> str:
    seeds = record["seeds"]
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"preset {record['preset']}, {count}, {record['seconds']:,.0f} s for all settings"


def _notes(findings: Findings, record: dict[str, Any]) -> list[str]:
    small = ["These sizes show that the command works; they say nothing about the claims."]
    return (small if record["preset"] == "smoke" else []) + list(findings.notes)


def _claims(findings: Findings) -> list[tuple[str, str, str, str]]:
    return [(claim.published, claim.measured, claim.verdict, claim.why) for claim in findings.claims]


def _table(head: Any, rows: Any) -> list[str]:
    def line(cells: Any) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + " --- |" * len(head), *[line(row) for row in rows]]
