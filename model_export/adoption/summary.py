"""Writes the summary of `adopt` for the terminal: how each signature of the model is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from model_export.adoption.plan import AdoptPlan
from service.artifact.manifest import SignatureEntry

# Part of a reason -> what the model's author can change.
_ADVICE = {
    "is float32, and lookups take": "Give the input the dtype int64 (keras.Input(..., dtype='int64')) to get a lookup",
    "Cast to int32 drops": "Declare the input as int32, or gather by the int64 ids, to get a lookup",
    "StaticRegexReplace is not": "Replace the text before you send keys, and export without it, to get a lookup",
    "RegexReplace is not": "Replace the text before you send keys, and export without it, to get a lookup",
    "StringLower is not": "Send keys in lower case, and export without tf.strings.lower, to get a lookup",
    "StringToHashBucketStrong is not": "Hash without a salt (StringToHashBucketFast) to get a lookup",
    "added up in another order": "Pass --allow_rounding to get a lookup whose sums may differ in the last bits",
}


class Times(NamedTuple):
    """Processor seconds of a request to an adopted model. before_s: in TensorFlow alone; after_s: with the manifest."""

    before_s: float
    after_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class Served:
    """The way in which the server will run one signature of an adopted model.

    reason: why the signature is no lookup; "" for a lookup.
    is_inexact: whether the lookup's sums may differ from the graph's in the last bits.
    times: None if the signature was not measured. compared: number of requests whose answers were compared: a lookup's
      with numpy's, a cut graph's bit by bit with the whole graph.
    """

    entry: SignatureEntry
    reason: str = ""
    is_inexact: bool = False
    is_added: bool = False
    times: Times | None = None
    compared: int = 0


def summary_lines(plan: AdoptPlan, served: Mapping[str, Served]) -> list[str]:
    """Returns a table of signatures as lines, then notes on signatures that are no lookups, inexact lookups and
    vocabularies.
    """
    rows = [("signature", "served", "by TensorFlow", "compared with", "µs before", "µs now", "features")]
    for name, one in served.items():
        features = ", ".join(one.entry.features) or "-"
        rows.append((name, _kind(one), _rest(one), _compared(one), *_times(one.times), features))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    notes = [f"{name}: {one.reason}{_advice(one.reason)}" for name, one in served.items() if one.reason]
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


def _compared(one: Served) -> str:
    if one.entry.kind == "lookup":
        return f"numpy, {one.compared} requests"
    return f"whole graph, {one.compared} requests" if one.compared else "-"


def _advice(reason: str) -> str:
    """Returns what the model's author can change so that the signature is served faster; "" if nothing is known."""
    return next((f". {advice}" for part, advice in _ADVICE.items() if part in reason), "")


def _times(times: Times | None) -> tuple[str, str]:
    if times is None:
        return "-", "-"
    return f"{times.before_s * 1e6:.0f}", f"{times.after_s * 1e6:.0f}"
