"""An exposition in Prometheus' text format as families with kinds, and back: what can be added up by a process that
counts nothing itself.

It reads what service/metrics writes: no timestamps, and the samples of a family behind its TYPE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Number = int | float


@dataclass(slots=True)
class Family:
    """One metric.

    samples: value by series, which is the name and the labels as they stand in the text.
    """

    name: str
    kind: str
    about: str = ""
    samples: dict[str, Number] = field(default_factory=dict)

    @property
    def is_cumulative(self) -> bool:
        """Whether its samples only ever grow, so that those of several processes add up."""
        return self.kind in ("counter", "histogram", "summary")


Exposition = dict[str, Family]


def parse(text: str) -> Exposition:
    """Returns the families by name; raises ValueError for what is no exposition."""
    families: Exposition = {}
    abouts: dict[str, str] = {}
    current: Family | None = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, about = line.removeprefix("# HELP ").partition(" ")
            abouts[name] = about
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            current = families[name] = Family(name, kind, abouts.get(name, ""))
        elif line and not line.startswith("#"):
            if current is None:
                raise ValueError(f"no TYPE before {line!r}")
            series, _, value = line.rpartition(" ")
            current.samples[series] = _number(value)
    return families


def render(families: Iterable[Family]) -> str:
    """Returns the text."""
    lines = []
    for family in families:
        if family.about:
            lines.append(f"# HELP {family.name} {family.about}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{series} {_text(value)}" for series, value in family.samples.items()]
    return "".join(f"{line}\n" for line in lines)


def labels(series: str) -> dict[str, str]:
    r"""Returns the labels of a series, unescaped.

    >>> labels('requests_total{model="a\\"b,c",version="3"}')
    {'model': 'a"b,c', 'version': '3'}
    >>> labels("process_open_fds")
    {}
    """
    _, _, rest = series.rstrip("}").partition("{")
    found: dict[str, str] = {}
    while rest:
        name, _, rest = rest.partition('="')
        value, rest = _quoted(rest)
        found[name.lstrip(",")] = value
    return found


def _quoted(text: str) -> tuple[str, str]:
    """Reads up to the quote that ends a value; returns the value and what is behind the quote."""
    value: list[str] = []
    characters = iter(enumerate(text))
    for place, character in characters:
        if character == '"':
            return "".join(value), text[place + 1 :]
        if character == "\\":
            _, character = next(characters, (0, ""))
            character = "\n" if character == "n" else character
        value.append(character)
    return "".join(value), ""


def _number(text: str) -> Number:
    # Whole numbers stay whole, whatever their size, and are written without a point again.
    return int(text) if text.lstrip("-").isdigit() else float(text.replace("Inf", "inf"))


def _text(value: Number) -> str:
    # The format's words for what is no number.
    return _SPECIAL.get(repr(value), repr(value))


_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
