"""What `pgps bench evidence` and `pgps bench gauntlet` show: each cell's figures, relative costs, and the page of both.

For errors e_i = ln Z_i - ln Z over n seeds,

    RMS = sqrt(mean e^2),    its standard error = sd(e^2) / (2 RMS sqrt(n)).

A run is wrong in silence if it warns of nothing, though its error is above 0.3 or above three reported errors.

Variance falls as 1 / gradients, so a sampler needs (RMS / RMS')^2 G / G' of the gradients of another for the same RMS.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
# What nobody would call right: an error above this, or above so many reported ones.
_LARGEST_ERROR = 0.3
_LARGEST_RATIO = 3.0
_HEAD = (
    "target",
    "sampler",
    "log Z error, mean ± sd",
    "RMS error",
    "reported error",
    "within 2 errors",
    "checks (truth)",
    "gradients",
    "value calls",
    "seconds",
    "warned",
    "wrong in silence",
    "seeds",
)
_COST_HEAD = (
    "target",
    "gradients, exact / zero",
    "RMS error, exact / zero",
    "gradients for the same RMS error, exact / zero",
    "seconds, exact / blackjax",
)


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """A cell's figures over the seeds; None for what the sampler does not give."""
    found = [row for row in rows if row["log_evidence"] is not None and row["truth"] is not None]
    errors = np.array([row["log_evidence"] - row["truth"] for row in found])
    barred = [(abs(e), row["log_evidence_error"]) for e, row in zip(errors, found, strict=True)]
    barred = [(e, bar) for e, bar in barred if bar is not None]
    rms = float(np.sqrt(np.mean(errors**2))) if found else None
    spread = len(found) > 1
    rms_error = float(np.std(errors**2, ddof=1) / (2 * rms * np.sqrt(len(found)))) if spread and rms else None
    names = {name: None for row in rows for name in row["checks"]}
    return {
        "seeds": len(rows),
        "complete": sum(row["complete"] for row in rows),
        "mean_error": float(np.mean(errors)) if found else None,
        "sd": float(np.std(errors, ddof=1)) if spread else None,
        "rms": rms,
        "rms_standard_error": rms_error,
        "reported_error": float(np.mean([bar for _, bar in barred])) if barred else None,
        "coverage": float(np.mean([e <= 2 * bar for e, bar in barred])) if barred else None,
        "checks": {name: float(np.mean([row["checks"][name] for row in rows if row["checks"]])) for name in names},
        "gradients": float(np.mean([row["gradients"] for row in rows])),
        "values": float(np.mean([row["values"] for row in rows])),
        "seconds": float(np.median([row["seconds"] for row in rows])),
        "warned": sum(bool(row["warnings"]) for row in rows),
        "silent": sum(not row["warnings"] and _is_wrong(e, row) for e, row in zip(errors, found, strict=True)),
        "num_warnings": sum(len(row["warnings"]) for row in rows),
    }


def _is_wrong(error: float, row: Row) -> bool:
    bar = row["log_evidence_error"]
    return bool(abs(error) > _LARGEST_ERROR or (bar is not None and abs(error) > _LARGEST_RATIO * bar))


def relative_cost(samplers: Mapping[str, Any]) -> dict[str, float | None]:
    """What `exact` costs of what `zero` costs on one target, and its seconds of those of `blackjax`."""
    exact, zero, peer = (samplers.get(name, {}) for name in ("exact", "zero", "blackjax"))
    gradients, rms = _ratio(exact, zero, "gradients"), _ratio(exact, zero, "rms")
    needed = error = None
    if gradients is not None and rms is not None:
        needed = rms**2 * gradients
        spreads = [(cell["rms_standard_error"], cell["rms"]) for cell in (exact, zero)]
        if all(spread is not None for spread, _ in spreads):
            error = 2 * needed * float(np.hypot(*[spread / size for spread, size in spreads]))
    return {
        "gradients": gradients,
        "rms": rms,
        "gradients_for_same_rms": needed,
        "gradients_for_same_rms_standard_error": error,
        "seconds_to_blackjax": _ratio(exact, peer, "seconds"),
    }


def markdown(record: Mapping[str, Any]) -> str:
    """The page for the documentation."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    lines = [
        "## Log evidence",
        "",
        f"`{record['command']}`, {record['machine']['cores']} cores, {versions}.",
        "",
        *_table(_HEAD, _rows(record)),
    ]
    costs = {target: cost for target, cost in record["relative_cost"].items() if cost["gradients"] is not None}
    if costs:
        lines += ["", "## Cost of `exact` next to tempered SMC", "", *_table(_COST_HEAD, _costs(costs))]
    return "\n".join(lines) + "\n"


def text_table(record: Mapping[str, Any]) -> str:
    """The columns that fit a terminal."""
    shown = (0, 1, 2, 3, 5, 7, 9, 10, 11)
    rows = [[row[column] for column in shown] for row in (_HEAD, *_rows(record))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(shown))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def _rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for target, samplers in record["summary"].items():
        truth = record["truth"][target]
        for sampler, cell in samplers.items():
            checks = [f"{name} {value:.4g} ({truth[name]:.4g})" for name, value in cell["checks"].items()]
            missing = cell["seeds"] - cell["complete"]
            rows.append(
                (
                    target,
                    sampler,
                    _number(cell["mean_error"], "{:+.4f}") + _number(cell["sd"], " ± {:.4f}", ""),
                    _number(cell["rms"], "{:.4f}") + _number(cell["rms_standard_error"], " ± {:.4f}", ""),
                    _number(cell["reported_error"], "{:.4f}"),
                    _number(cell["coverage"], "{:.0%}"),
                    "; ".join(checks) or "-",
                    f"{cell['gradients']:,.0f}",
                    f"{cell['values']:,.0f}",
                    f"{cell['seconds']:.3g}",
                    str(cell["warned"]),
                    str(cell["silent"]),
                    str(cell["seeds"]) + (f", {missing} not complete" if missing else ""),
                )
            )
    return rows


def _costs(costs: Mapping[str, Mapping[str, float | None]]) -> list[tuple[str, ...]]:
    return [
        (
            target,
            _number(cost["gradients"], "{:.2f}"),
            _number(cost["rms"], "{:.2f}"),
            _number(cost["gradients_for_same_rms"], "{:.2f}")
            + _number(cost["gradients_for_same_rms_standard_error"], " ± {:.2f}", ""),
            _number(cost["seconds_to_blackjax"], "{:.2f}"),
        )
        for target, cost in costs.items()
    ]


def _ratio(cell: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
    above, below = cell.get(name), other.get(name)
    return None if above is None or not below else above / below


def _number(value: float | None, template: str, missing: str = "-") -> str:
    return missing if value is None else template.format(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]
