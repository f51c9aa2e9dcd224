"""Writes the results of tests of foreign models as a Markdown table with one row per model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadtest.foreign.campaign import ModelResult
from loadtest.foreign.comparing import Tally
from loadtest.live_server import row

COLUMNS = ("model", "adopted", "signatures", "lookup / cut / whole", "equal to the bit", "original equal")
_REASON_CHARS = 110
# Largest length of the text about a feature of a random model: a vocabulary may have a thousand keys.
_WORDS_CHARS = 700


def row_of(result: ModelResult) -> str:
    if result.adopted is None:
        fault = result.fault if result.is_skipped else f"not built: {result.fault}"
        return row(result.name, _short(fault), *[""] * (len(COLUMNS) - 2))
    is_adopted = "yes" if result.adopted.version else f"no: {_short(result.adopted.reason)}"
    if result.fault:
        is_adopted += f"; {_short(result.fault)}"
    runs = Counter(result.adopted.runs.values())
    num_signatures = len({key.rsplit(" ", 2)[0] for key in result.tallies})
    how = " / ".join(str(runs[kind]) for kind in ("lookup", "cut", "whole")) if result.adopted.version else ""
    equal = (_equal(result.of(side)) for side in ("adopted", "original"))
    return row(result.name, is_adopted, num_signatures, how, *equal)


def findings(result: ModelResult) -> list[str]:
    """Returns lines on a model that adopt refused, or whose answers differ; none if all is well.

    They are the model in words, and of each kind of difference how often it occurred, with an example.
    """
    lines = [f"not compared: {reason}" for reason in result.not_compared]
    for where, tally in result.tallies.items():
        lines += [f"{where}: {count} of {tally.asked}: {text}" for text, count in tally.reasons.items()]
        lines += [f"{where}: first: {tally.example}"] if tally.example else []
    kind = verdict(result)
    if kind == "equal" and not lines:
        return []
    reason = result.fault or (result.adopted.reason if result.adopted else "")
    words = [line.strip()[:_WORDS_CHARS] for line in result.words.splitlines()]
    first = f"{kind.upper()} {result.name}" + (f": {_short(reason)}" if reason else "")
    return [first, *(f"    {line}" for line in [*words, *lines])]


def summary(results: Sequence[ModelResult]) -> str:
    """Returns a line that counts models by verdict, and signatures by how the server runs them."""
    counts = Counter(verdict(result) for result in results)
    counts.update(f"signatures: {run}" for one in results if one.adopted for run in one.adopted.runs.values())
    return f"{len(results)} models: " + "; ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def verdict(result: ModelResult) -> str:
    """Says in a word what was found of a model: skipped, not built, refused (by adopt), wrong, failed or equal."""
    if result.adopted is None:
        return "skipped" if result.is_skipped else "not built"
    if not result.adopted.version:
        return "refused"
    if any(tally.reasons for tally in result.of("adopted")):
        return "wrong"
    return "equal" if result.is_exact else "failed"


def _equal(tallies: Sequence[Tally]) -> str:
    return f"{sum(tally.equal for tally in tallies)}/{sum(tally.asked for tally in tallies)}" if tallies else ""


def _short(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:_REASON_CHARS]
