"""Renders the content of the status page as one HTML page without scripts and without further files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; max-width: 1400px; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
td.n, th.n { text-align: right; }
.bad { color: #c62828; font-weight: 600; } .good { color: #2e7d32; font-weight: 600; }
"""
_GOOD, _BAD = frozenset({"AVAILABLE", "OK", True}), frozenset({"END", "INTERNAL", "UNAVAILABLE", False})
_NOTED = ("at", "seconds", "run_seconds", "code", "api", "method", "model", "version", "signature", "rows")

Row = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    server = document["server"]
    sections = [
        _section("Needs attention", document["attention"]),
        _section("Server", [{"": name, " ": _shown(name, value)} for name, value in server.items()]),
        _section("Versions", _versions(document["models"])),
        _section("Signatures left to their graphs", _reasons(document["models"], "signature_faults")),
        _section("Signatures that are not run", _reasons(document["models"], "not_run")),
        _section("Tables", _tables(document["models"])),
        _section("Requests", [_failures_named(row) for row in document["requests"]]),
        _section("Changed rows", _deltas(document["models"])),
        _section("Overload", _overload(document["overload"])),
        _section("Slow requests", _some(document["slow_requests"], (*_NOTED, "request_id"))),
        _section("Last errors", _some(document["last_errors"], ("at", *_NOTED[3:9], "message", "request_id"))),
        _section("Request logs", [{"model": name, **log} for name, log in document["request_logs"].items()]),
        _section(
            "Settings",
            [
                {"setting": name, "value": one["value"], "": "" if one["is_default"] else "set"}
                for name, one in sorted(document["settings"].items(), key=lambda item: (item[1]["is_default"], item[0]))
            ],
        ),
    ]
    title = f"embedding-server {escape(str(server['version']))}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f'<body><h1>{title}</h1>\n<p><a href="/console">Console</a></p>\n'
        f"{''.join(sections)}</body></html>\n"
    )


def _section(title: str, rows: Iterable[Row]) -> str:
    rows = list(rows)
    if not rows:
        return f"<h2>{escape(title)}</h2><p>none</p>\n"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = {name for name in columns if all(_is_number(row.get(name)) for row in rows)}
    head = "".join(f"<th{_class(name in numeric)}>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(_cell(name, row.get(name), name in numeric) for name in columns)}</tr>\n" for row in rows
    )
    return f"<h2>{escape(title)}</h2><div><table><tr>{head}</tr>\n{body}</table></div>\n"


def _cell(name: str, value: Any, is_number: bool) -> str:
    kind = "good" if _is_in(value, _GOOD) else "bad" if _is_in(value, _BAD) else ""
    text = escape(str(_shown(name, value)))
    return f"<td{_class(is_number)}>{f'<span class={kind}>{text}</span>' if kind else text}</td>"


def _class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_in(value: Any, values: frozenset[Any]) -> bool:
    # The status page marks some texts and booleans as good or bad, but no numbers: 1 == True in Python, so the count 1
    # would be marked like True.
    return isinstance(value, str | bool) and value in values


def _shown(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**20:,.1f} MiB"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool) and name not in ("pid", "version"):
        return f"{value:,}"
    return value


def _versions(models: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for name, model in models.items():
        labels: dict[int, list[str]] = {}
        for label, version in model["labels"].items():
            labels.setdefault(version, []).append(label)
        for one in model["versions"] or [{"version": None, "state": "none", "code": "", "message": model["problem"]}]:
            rows.append(
                {
                    "model": name,
                    **{key: one[key] for key in ("version", "state")},
                    "labels": ", ".join(labels.get(one["version"], [])),
                    "in_flight": one.get("in_flight"),
                    "verification": one.get("verification"),
                    "signatures": ", ".join(f"{s} ({kind})" for s, kind in one.get("signatures", {}).items()),
                    "error": f"{one['code']}: {one['message']}" if one["message"] else one.get("note", ""),
                }
            )
    return rows


def _reasons(models: Mapping[str, Any], kind: str) -> list[Row]:
    return [
        {"model": name, "version": one["version"], "signature": signature, "reason": reason}
        for name, model in models.items()
        for one in model["versions"]
        for signature, reason in one.get(kind, {}).items()
    ]


def _tables(models: Mapping[str, Any]) -> list[Row]:
    return [
        {"model": name, "version": one["version"], **table}
        for name, model in models.items()
        for one in model["versions"]
        for table in one.get("tables", [])
    ]


def _deltas(models: Mapping[str, Any]) -> list[Row]:
    return [
        {"model": name, "version": one["version"], **_delta_counts(one["deltas"])}
        for name, model in models.items()
        for one in model["versions"]
        if one.get("deltas") is not None
    ]


def _delta_counts(status: Row) -> Row:
    journal = status["journal"]
    shown: Row = _counts_named(
        {name: value for name, value in status.items() if name != "recent"}, "refused", "journal_failures"
    )
    return {**shown, "journal": f"{journal['bytes']} of {journal['max_bytes']} bytes" if journal else "none"}


def _overload(found: Mapping[str, Any]) -> list[Row]:
    if not found:
        return []
    limits = found["limits"]
    rows: list[Row] = [_counts_named(row, "refused") for row in found["models"]]
    limit = {"model": "(limits)", "in_flight_bytes": limits["bytes"]}
    return [limit | {"refused": None, "p99_thread_wait_ms": limits["wait_ms"]}, *rows]


def _failures_named(row: Row) -> Row:
    return _counts_named(row, "failures")


def _counts_named(row: Row, *names: str) -> Row:
    return {**row, **{one: ", ".join(f"{name} {count}" for name, count in sorted(row[one].items())) for one in names}}


def _some(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]
