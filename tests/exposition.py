"""Parses Prometheus's text format strictly, by the format's description, without code of a Prometheus library.

Source: prometheus.io/docs/instrumenting/exposition_formats, "Text format details".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL})(?:,{_LABEL})*)?\}})? (\S+)")
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN")
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric: its kind, and its samples by name and labels, in the order in which the text lists them."""

    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: object) -> float:
        """Returns the value of the metric's one sample that has exactly these labels."""
        wanted = {name: str(value) for name, value in labels.items()}
        (found,) = [v for (n, ls), v in self.samples.items() if n.endswith(suffix) and dict(ls) == wanted]
        return found

    def labelled(self) -> list[dict[str, str]]:
        """Returns the labels of all samples of the metric."""
        return [dict(labels) for _, labels in self.samples]


def read_exposition(text: str) -> dict[str, Family]:
    """Parses a text to metric families by name; fails an assertion on anything that the format forbids."""
    assert text.endswith("\n"), "the last line has no end"
    families: dict[str, Family] = {}
    helped: set[str] = set()
    current = ""
    for line in text.splitlines():
        assert line, "an empty line"
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped and name not in families, f"HELP of {name} twice, or behind its samples"
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert re.fullmatch(_NAME, name), line
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped"), line
            assert name not in families, f"TYPE of {name} twice, or its samples in two places"
            families[name], current = Family(kind), name
        else:
            assert not line.startswith("#"), line
            _add_sample(families, current, line)
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
        elif family.kind == "counter":
            assert all(value >= 0 for value in family.samples.values()), name
    return families


def _add_sample(families: dict[str, Family], current: str, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found, f"no sample: {line}"
    name, pairs, value = found.groups()
    assert _VALUE.fullmatch(value), line
    assert current, f"no TYPE before {line}"
    family = families[current]
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in {current + suffix for suffix in suffixes}, f"{line} among the samples of {current}"
    labels = tuple(
        (key, re.sub(r"\\.", lambda match: _UNESCAPED[match[0]], text)) for key, text in _PAIR.findall(pairs or "")
    )
    assert len(dict(labels)) == len(labels), f"a label twice: {line}"
    key = (name, labels)
    same = {(other, frozenset(others)) for other, others in family.samples}
    assert (name, frozenset(labels)) not in same, f"a sample twice: {line}"
    family.samples[key] = float(value)


def _check_histogram(name: str, family: Family) -> None:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            rest = tuple(pair for pair in labels if pair[0] != "le")
            groups.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    sums = {labels for sample, labels in family.samples if sample == f"{name}_sum"}
    counts = {labels: value for (sample, labels), value in family.samples.items() if sample == f"{name}_count"}
    assert sums == set(counts) == set(groups), name
    for labels, buckets in groups.items():
        limits, values = [limit for limit, _ in buckets], [value for _, value in buckets]
        assert limits == sorted(set(limits)) and limits[-1] == math.inf, name
        assert values == sorted(values), f"{name} {labels} is not cumulative"
        assert values[-1] == counts[labels], f"{name} {labels}: +Inf is not the count"
