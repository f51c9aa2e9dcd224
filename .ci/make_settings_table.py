"""Writes docs/settings.md from the class service.configuration.settings.Settings, and the table of flags in
docs/from-tensorflow-serving.md; `--check` only compares the files.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Literal, get_args, get_origin, get_type_hints

import generated_page

from service.configuration.server_settings import Port
from service.configuration.settings import SECTIONS, Settings
from service.configuration.settings_reading import FOREIGN_FLAGS

HEAD = """\
# Settings

Each setting is a flag (`--port=8500`) and an environment variable (`EMB_PORT=8500`); the flag wins. The server does not
start if a variable that begins with `EMB_` is none of these, or if a value is out of its range: the message lists every
fault. A flag with a name of TensorFlow Serving's has the same meaning as there;
[from-tensorflow-serving.md](from-tensorflow-serving.md) lists its flags that are no settings here.

This file is generated from `service/configuration/settings.py` (`make generated`).
"""

SECTION_HEAD = """
## %s

| Flag | Values | Default | Meaning |
|---|---|---|---|
"""

FOREIGN_PAGE = "from-tensorflow-serving.md"
FOREIGN_HEAD = "| Flag | Here | |\n|---|---|---|\n"


def table() -> str:
    """Returns the page."""
    types = get_type_hints(Settings)
    return HEAD + "".join(_row(setting, types[setting.name]) for setting in dataclasses.fields(Settings))


def foreign_page() -> str:
    """Returns the page about TensorFlow Serving with the present rows in its table of flags."""
    names: dict[tuple[bool, str], list[str]] = {}
    for name, flag in FOREIGN_FLAGS.items():
        names.setdefault((flag.is_refused, flag.why), []).append(f"`--{name}`")
    rows = "".join(
        f"| {', '.join(same)} | {'refused' if is_refused else 'no effect'} | {why} |\n"
        for (is_refused, why), same in names.items()
    )
    before, _, after = (generated_page.DOCS / FOREIGN_PAGE).read_text().partition(FOREIGN_HEAD)
    return before + FOREIGN_HEAD + rows + after[after.index("\n## ") :]


def _row(setting: dataclasses.Field[Any], kind: Any) -> str:
    about = setting.metadata
    head = SECTION_HEAD % SECTIONS[setting.name] if setting.name in SECTIONS else ""
    span = "" if about["low"] is None else f"{about['low']} to {about['high']}"
    if get_origin(kind) is Literal:
        values = ", ".join(f"`{choice}`" for choice in get_args(kind))
    elif kind == Port:
        values = f"{span}, `auto`"
    else:
        values = {"str": "text", "int": span, "float": span, "bool": "true, false"}[kind.__name__]
    default = f"`{setting.default}`" if setting.default != "" else ""
    if isinstance(setting.default, bool):
        default = default.lower()
    cells = (f"`--{setting.name}`", values, default, about["about"])
    return head + generated_page.row(*cells)


if __name__ == "__main__":
    sys.exit(generated_page.run({"settings.md": table(), FOREIGN_PAGE: foreign_page()}))
