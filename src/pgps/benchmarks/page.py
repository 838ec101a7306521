"""A benchmark's `report.html`: what was asked, the table that it prints, and its record."""

from pathlib import Path
from typing import Any

from pgps import reporting
from pgps.reporting.report import replace_page


def write_report(folder: Path, name: str, asked: str, table: str, record: dict[str, Any]) -> Path:
    """Write the page into the benchmark's folder, in the place of an earlier one."""
    failures = record.get("failures") or []
    verdict = reporting.Verdict("good", "Measured.", "The figures are below; what they are of is in the settings.")
    if failures:
        number = failures if isinstance(failures, int) else len(failures)
        verdict = reporting.Verdict("bad", "Failed.", f"{number} of what was tried did not go as it should.")
    page = reporting.render(
        reporting.Report(
            title=f"pgps bench {name}",
            asked=asked,
            verdict=verdict,
            facts={"Cores": str(record.get("machine", {}).get("cores", "not recorded"))},
            warnings=(),
            tables=(),
            images=(),
            text=table,
            versions={name: version or "not installed" for name, version in record.get("versions", {}).items()},
            settings=record,
            kind="bench",
        )
    )
    return replace_page(folder / "report.html", page, "bench")
