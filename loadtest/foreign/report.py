"""Writes the results of tests of foreign models as a Markdown table with one row per model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from loadtest.foreign.campaign import ModelResult
from loadtest.foreign.comparing import Tally

_COLUMNS = (
    "model",
    "adopted",
    "signatures",
    "lookup / cut / whole",
    "equal to the bit",
    "original equal",
    "gRPC ratio",
    "REST ratio",
)
_REASON_CHARS = 110
# Longest text about a feature of a random model: a vocabulary may have a thousand keys.
_WORDS_CHARS = 700


def header() -> str:
    return _line(_COLUMNS) + "\n" + _line("---" for _ in _COLUMNS)


def row(result: ModelResult) -> str:
    """Returns a model's row of the results table; the ratios are the smallest and largest of its signatures."""
    if result.adopted is None:
        fault = result.fault if result.is_skipped else f"not built: {result.fault}"
        return _line([result.name, _short(fault), *[""] * (len(_COLUMNS) - 2)])
    is_adopted = "yes" if result.adopted.version else f"no: {_short(result.adopted.reason)}"
    if result.fault:
        is_adopted += f"; {_short(result.fault)}"
    runs = Counter(result.adopted.runs.values())
    found = result.signatures.values()
    return _line(
        [
            result.name,
            is_adopted,
            str(len(result.signatures)),
            " / ".join(str(runs[kind]) for kind in ("lookup", "cut", "whole")) if result.adopted.version else "",
            _equal(tally for signature in found for tally in signature.adopted.values()),
            _equal(tally for signature in found for tally in signature.original.values()),
            *(_ratios(result, wire) for wire in ("grpc", "rest")),
        ]
    )


def details(results: Iterable[ModelResult]) -> list[str]:
    """Returns one line for each kind of difference between answers, and one for each signature that was not timed."""
    lines = []
    for result in results:
        lines += [f"{result.name} not compared: {reason}" for reason in result.not_compared]
        for name, signature in result.signatures.items():
            for side, wires in (("adopted", signature.adopted), ("original", signature.original)):
                for wire, tally in wires.items():
                    lines += [
                        f"{result.name} {name} {side} {wire}: {count} x {text}" for text, count in tally.reasons.items()
                    ]
                    lines += [f"{result.name} {name} {side} {wire}: first: {tally.example}"] if tally.example else []
            for wire, speed in signature.speed.items():
                if speed.reason:
                    lines.append(f"{result.name} {name} {wire}: not timed: {speed.reason}")
    return lines


def summary(results: Iterable[ModelResult]) -> str:
    results = list(results)
    adopted = [result for result in results if result.adopted and result.adopted.version]
    exact = [result for result in adopted if result.is_exact]
    skipped = sum(result.is_skipped for result in results)
    return (
        f"{len(results)} models, {len(adopted)} adopted, {len(exact)} of them equal to the bit everywhere; "
        f"{skipped} skipped"
    )


def findings(result: ModelResult) -> list[str]:
    """Returns lines on a model that adopt refused, or whose answers differ: the model in words, and an example."""
    reason = result.fault or (result.adopted.reason if result.adopted else "")
    lines = [f"{verdict(result).upper()} {result.name}" + (f": {_short(reason)}" if reason else "")]
    lines += [f"    {line.strip()[:_WORDS_CHARS]}" for line in result.words.splitlines()]
    for name, signature in result.signatures.items():
        for wire, tally in signature.adopted.items():
            if tally.reasons:
                lines.append(f"    {name} {wire}: {tally.asked - tally.equal} of {tally.asked}: {tally.example}")
    return lines + [f"    not compared: {reason}" for reason in result.not_compared]


def random_summary(results: Sequence[ModelResult], command: Callable[[str], str]) -> list[str]:
    """Returns lines on random models: all that is wrong, and how many were described in which way.

    Args:
      command: returns the command that tests a model again, by its name.
    """
    counts: Counter[str] = Counter()
    lines = []
    for result in results:
        kind = verdict(result)
        counts[kind] += 1
        counts.update(f"signatures: {run}" for run in (result.adopted.runs.values() if result.adopted else ()))
        if kind != "equal":
            lines += [*findings(result), f"    {command(result.name)}"]
    return [*lines, "; ".join(f"{count} {what}" for what, count in sorted(counts.items()))]


def verdict(result: ModelResult) -> str:
    """Says in a word what was found of a random model: "not built", "refused", "failed", "wrong" or "equal"."""
    if result.adopted is None:
        return "not built"
    if not result.adopted.version:
        return "refused"
    tallies = [tally for signature in result.signatures.values() for tally in signature.adopted.values()]
    if any(tally.reasons for tally in tallies):
        return "wrong"
    return "failed" if result.fault or result.not_compared else "equal"


def _ratios(result: ModelResult, wire: str) -> str:
    ratios = [s.speed[wire].ratio for s in result.signatures.values() if wire in s.speed]
    found = sorted(ratio for ratio in ratios if ratio is not None)
    if not found:
        return ""
    return f"{found[0]:.2f}" if len(found) == 1 else f"{found[0]:.2f} to {found[-1]:.2f}"


def _equal(tallies: Iterable[Tally]) -> str:
    tallies = list(tallies)
    if not tallies:
        return ""
    equal, asked = sum(tally.equal for tally in tallies), sum(tally.asked for tally in tallies)
    worst = max(tally.max_ulp for tally in tallies)
    return f"{equal}/{asked}" + (f" ({worst} ulp)" if worst else "")


def _short(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:_REASON_CHARS]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
