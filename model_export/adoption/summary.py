"""Writes the summary of `adopt` for the terminal: how each signature of the model is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from model_export.adoption.plan import AdoptPlan
from service.artifact.manifest import SignatureEntry


class Times(NamedTuple):
    """Seconds of a request to an adopted model. before_s: in TensorFlow alone; after_s: served with the manifest."""

    before_s: float
    after_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class Served:
    """The way in which the server will run one signature of an adopted model.

    reason: why the signature is no lookup; "" for a lookup.
    is_inexact: whether the lookup's sums may differ from the graph's in the last bits.
    times: None if the signature was not measured.
    """

    entry: SignatureEntry
    reason: str = ""
    is_inexact: bool = False
    is_added: bool = False
    times: Times | None = None


def summary_lines(plan: AdoptPlan, served: Mapping[str, Served]) -> list[str]:
    """Returns a table of signatures as lines, then notes on signatures that are no lookups, inexact lookups and
    vocabularies.
    """
    rows = [("signature", "served", "by TensorFlow", "us before", "us now", "features")]
    for name, one in served.items():
        rows.append((name, _kind(one), _rest(one), *_times(one.times), ", ".join(one.entry.features) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    # A reason may be several sentences, of which a measurement adds one to an empty text.
    reasons = {name: one.reason.removeprefix("; ") for name, one in served.items()}
    notes = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    notes += [
        f"{name}: sums are added up in another order than TensorFlow's, so the last bits may differ"
        for name, one in served.items()
        if one.is_inexact and one.entry.kind == "lookup"
    ]
    keyed = [f"{name} ({one.entry.size or 'hashed'} keys)" for name, one in plan.vocabularies.items()]
    if keyed:
        notes.append("vocabularies taken from the graph: " + ", ".join(keyed))
    return [*lines, *notes]


def _kind(one: Served) -> str:
    if one.entry.kind == "lookup":
        return "lookup, added" if one.is_added else "lookup"
    return "whole graph" if one.entry.run == "whole" else "lookups cut out"


def _rest(one: Served) -> str:
    if one.entry.kind == "lookup":
        return "nothing"
    return "everything" if one.entry.run == "whole" else "what follows the lookups"


def _times(times: Times | None) -> tuple[str, str]:
    if times is None:
        return "-", "-"
    return f"{times.before_s * 1e6:.0f}", f"{times.after_s * 1e6:.0f}"
