"""Writes the names of tables and features that `adopt` finds as TOML, and applies the names that a user changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from model_export.adoption.discovery import Discovery
from model_export.adoption.spec import Names
from model_export.errors import ExportError
from service.artifact.manifest import LookupFeature
from service.near_names import did_you_mean


def names_text(found: Discovery) -> str:
    """Returns the found names as the text of a TOML file; a comment on each line describes the table or the feature."""
    lines = ["# Change the names on the right and pass this file to `model-export adopt` as --spec.", "[names.tables]"]
    for key, name in found.tables.items():
        entry = found.opened.variables[key]
        lines.append(f'{name} = "{name}"  # {key}, {entry.shape[0]} x {entry.shape[1]} {entry.dtype}')
    lines += ["", "[names.features]"]
    lookups: dict[str, LookupFeature] = {}
    for signature in found.signatures:
        for name, lookup in signature.entry.features.items():
            lookups.setdefault(name, lookup)
    for name, feature in found.features.items():
        keys = "" if feature.keys is None else f", {feature.keys.entry.size or 'hashed'} keys"
        lines.append(f'{name} = "{name}"  # {_words(lookups[name])} of table {found.tables[feature.table]}{keys}')
    lines.append("")
    for signature in found.signatures:
        why = f": {signature.reason}" if signature.reason else ""
        lines.append(f"# signature {signature.name} is a {signature.entry.kind}{why}")
    return "\n".join(lines)


def with_names(found: Discovery, names: Names) -> Discovery:
    """Returns a copy of adopt's findings in which tables and features have the names that the user chose.

    Raises:
      ExportError: `names` renames a table or feature that was not found, or gives two tables or two features one name.
    """
    _check("table", names.tables, list(found.tables.values()))
    _check("feature", names.features, list(found.features))
    signatures = []
    for one in found.signatures:
        features = {names.features.get(name, name): lookup for name, lookup in one.entry.features.items()}
        together = {
            output: tuple(names.features.get(part, part) for part in parts)
            for output, parts in one.entry.concatenated.items()
        }
        entry = dataclasses.replace(one.entry, features=features, concatenated=together)
        signatures.append(dataclasses.replace(one, entry=entry))
    return dataclasses.replace(
        found,
        tables={key: names.tables.get(name, name) for key, name in found.tables.items()},
        features={names.features.get(name, name): feature for name, feature in found.features.items()},
        signatures=tuple(signatures),
    )


def _check(kind: str, names: Mapping[str, str], found: list[str]) -> None:
    if unknown := sorted(set(names) - set(found)):
        near = did_you_mean(unknown[0], found)
        raise ExportError(f"no {kind} {unknown[0]!r} was found; found: {', '.join(sorted(found))}{near}")
    used = [names.get(name, name) for name in found]
    if twice := sorted({name for name in used if used.count(name) > 1}):
        raise ExportError(f"two {kind}s would be named {twice[0]!r}")


def _words(lookup: LookupFeature) -> str:
    if lookup.row_splits is None:
        return f"rows by {lookup.ids}"
    return f"{lookup.combiner} of rows by {lookup.ids}, {lookup.row_splits}"
