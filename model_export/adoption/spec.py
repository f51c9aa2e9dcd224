"""The files in which a user names tables and features for `model-export adopt`, or declares them (--spec)."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from model_export.errors import ExportError
from model_export.graphs.source import ADOPTED_DTYPES, DEFAULT_BATCH_SIZES, lookup_devices
from model_export.spec.features import FeatureSpec, ModelSpec, TableSpec, VocabularySpec
from service.artifact.bundle import BundleEntry
from service.artifact.dict_vocabulary import vocabulary_lines
from service.artifact.manifest import LookupDevice
from service.errors import did_you_mean

_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Last parts of variable names that occur in layers of every kind, so a table is not named after them.
_KINDS = re.compile(
    r"(embeddings?|embedding_weights|weights?|table|variable|_?kernel|value)(_\d+)?(:0)?$", re.IGNORECASE
)
_NAMELESS = re.compile(r"variable(_\d+)?$", re.IGNORECASE)

# Names that Keras and TensorFlow make up for inputs without a name.
_NAMELESS_INPUT = re.compile(r"(keras_tensor|inputs?|input_layer|args)(_\d+)*$")


def table_names(keys: Iterable[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Makes a table name for each given checkpoint key; no two keys get the same name.

    Args:
      variables: checkpoint key -> the variable's name in the graph.

    >>> table_names(["_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE"],
    ...             {"_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE": "user_emb/embeddings_1"})
    {'_operations/2/_embeddings/.ATTRIBUTES/VARIABLE_VALUE': 'user_emb'}
    >>> table_names(["user/.ATTRIBUTES/VARIABLE_VALUE"], {"user/.ATTRIBUTES/VARIABLE_VALUE": "Variable_3"})
    {'user/.ATTRIBUTES/VARIABLE_VALUE': 'user'}
    """
    found: dict[str, str] = {}
    for key in sorted(keys):
        given = variables.get(key, "")
        path = key.removesuffix(_ATTRIBUTE)
        name = _plain(path if _NAMELESS.match(given) or not given else given)
        found[key] = unique(name, set(found.values()))
    return found


def unique(name: str, taken: set[str]) -> str:
    """Returns a name that is not in `taken`: the given name, or the given name with a number appended."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def is_nameless_input(name: str) -> bool:
    """Says whether Keras or TensorFlow made up the name of an input, because the user gave none.

    >>> is_nameless_input("keras_tensor_3"), is_nameless_input("args_0_1"), is_nameless_input("input_ids")
    (True, True, False)
    """
    return _NAMELESS_INPUT.match(name) is not None


def valid(name: str) -> str:
    """Makes a name of letters, digits and _ that starts with a letter.

    >>> valid("user id"), valid("2nd")
    ('user_id', 'n2nd')
    """
    cleaned = re.sub(r"\W+", "_", name).strip("_") or "table"
    return cleaned if cleaned[0].isalpha() else f"n{cleaned}"


def _plain(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.lstrip("_").isdigit()]
    if len(parts) > 1 and _KINDS.match(parts[-1].lstrip("_")):
        parts.pop()
    return valid(parts[-1] if parts else "")


_FEATURE_KEYS = tuple(one.name for one in fields(FeatureSpec) if one.name not in ("name", "sends_rows"))
_VOCABULARY_KEYS = ("file", "first_id", "oov_id", "num_oov_buckets", "on_oov")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FittingSignature:
    """A signature of the SavedModel that the spec file declares to be a lookup.

    outputs: feature -> output; empty: each output has its feature's name.
    inputs: feature -> {"ids", "row_splits", "weights"} -> input, for inputs that are not named after the feature.
    """

    outputs: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    device: LookupDevice = "cpu"


@dataclass(frozen=True, slots=True)
class AdoptSpec:
    """The contents of a user's spec file for `model-export adopt`: tables, features and signatures.

    variables: table -> checkpoint key. fitting: signatures that the file declares to be lookups. added: devices to add
    a lookup signature for; None: "cpu" if `fitting` is empty.
    """

    model: ModelSpec
    variables: Mapping[str, str]
    fitting: Mapping[str, FittingSignature]
    added: tuple[LookupDevice, ...] | None
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names chosen by the user for tables and features: the name that adopt found -> the name to use."""

    tables: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)


def read_names(path: Path) -> Names | None:
    """Reads a file of names; returns None if the file is a spec of tables and features.

    Raises:
      ExportError: the file can not be read, is no TOML, or holds other keys beside [names].
    """
    data = _parsed(path)
    names = data.get("names")
    if names is None:
        return None
    if set(data) != {"names"} or not isinstance(names, dict) or not set(names) <= {"tables", "features"}:
        raise ExportError(f"{path}: a file of names holds [names.tables] and [names.features] and nothing else")
    for section in names.values():
        for name in section.values() if isinstance(section, dict) else [section]:
            if not isinstance(name, str) or valid(name) != name:
                raise ExportError(f"{path}: {name!r} is no name; use letters, digits and _, a letter first")
    return Names(names.get("tables", {}), names.get("features", {}))


def read_spec(path: Path, variables: Mapping[str, BundleEntry]) -> AdoptSpec:
    """Reads a spec file and finds its tables among the variables of a SavedModel.

    Raises:
      ExportError: the file is no TOML, has an unknown key, or names a variable that is no table.
    """
    data = _parsed(path)
    _refuse_unknown(path, "", data, ("tables", "features", "signatures", "lookup"))
    keys, tables = {}, []
    for name, entry in _sections(path, data, "tables").items():
        _refuse_unknown(path, f"tables.{name}.", entry, ("variable", "combiner"))
        keys[name] = find_variable(str(entry.get("variable", name)), variables)
        rows, dim = variables[keys[name]].shape
        combiner = entry.get("combiner", "mean")
        tables.append(_built(path, f"tables.{name}", TableSpec, name, rows, dim, combiner=combiner))
    features = [_feature(path, name, entry) for name, entry in _sections(path, data, "features").items()]
    if not tables or not features:
        raise ExportError(f"{path} declares {len(tables)} tables and {len(features)} features; at least one of each")
    fitting = {}
    for name, entry in _sections(path, data, "signatures").items():
        _refuse_unknown(path, f"signatures.{name}.", entry, ("outputs", "inputs", "device"))
        fitting[name] = FittingSignature(**entry)
    lookup = data.get("lookup")
    _refuse_unknown(path, "lookup.", lookup or {}, ("device", "batch_sizes"))
    sizes = tuple((lookup or {}).get("batch_sizes", DEFAULT_BATCH_SIZES))
    added = None if lookup is None else lookup_devices(lookup.get("device", "cpu"))
    model = _built(path, "tables and features", ModelSpec, tuple(tables), tuple(features))
    return AdoptSpec(model, keys, fitting, added, sizes)


def find_variable(name: str, variables: Mapping[str, BundleEntry], *, dtypes: Collection[str] = ADOPTED_DTYPES) -> str:
    """Returns the checkpoint key of the one matrix whose key equals `name` or ends in it.

    Raises:
      ExportError: no variable fits, or several do; the message lists all candidates.
    """
    plain = {key: key.removesuffix(_ATTRIBUTE) for key in variables}
    exact = [key for key, short in plain.items() if name in (key, short)]
    found = exact or [key for key, short in plain.items() if short.endswith("/" + name)]
    if len(found) == 1 and is_table(variables[found[0]], dtypes):
        return found[0]
    if len(found) == 1:
        entry = variables[found[0]]
        problem = f"is {entry.dtype} {list(entry.shape)}; a table is a matrix of {' or '.join(dtypes)}"
    else:
        near = did_you_mean(name, plain.values())
        problem = f"is not there{near}" if not found else f"may be any of {sorted(found)}"
    raise ExportError(f"variable {name!r} {problem}\nCandidates:\n" + "\n".join(candidate_lines(variables)))


def is_table(entry: BundleEntry, dtypes: Collection[str] = ADOPTED_DTYPES) -> bool:
    """Says whether a variable is a matrix of one of the dtypes; by default, of those that adopt takes for tables."""
    return entry.dtype in dtypes and len(entry.shape) == 2


def candidate_lines(variables: Mapping[str, BundleEntry]) -> list[str]:
    """Lists name, shape and dtype of numeric variables, one per line: possible tables first, then by falling size."""

    def order(item: tuple[str, BundleEntry]) -> tuple[bool, int]:
        return not is_table(item[1]), -math.prod(item[1].shape)

    lines = []
    for key, entry in sorted(variables.items(), key=order):
        if entry.dtype != "other":
            parts = ", in parts" if entry.is_sliced else ""
            mark = "table?" if is_table(entry) else "      "
            lines.append(f"  {mark} {key}  {list(entry.shape)} {entry.dtype}{parts}")
    return lines


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ExportError(f"cannot read {path}: it is no TOML: {error}") from error


def _feature(path: Path, name: str, entry: Mapping[str, Any]) -> FeatureSpec:
    _refuse_unknown(path, f"features.{name}.", entry, _FEATURE_KEYS)
    options = dict(entry)
    words = options.pop("vocabulary", None)
    if words is not None:
        _refuse_unknown(path, f"features.{name}.vocabulary.", words, _VOCABULARY_KEYS)
        rest = {key: value for key, value in words.items() if key != "file"}
        try:
            lines = vocabulary_lines(path.parent / str(words.get("file", "")))
            keys = tuple(line.decode() for line in lines)
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"{path}: features.{name}.vocabulary.file: {error}") from error
        options["vocabulary"] = _built(path, f"features.{name}.vocabulary", VocabularySpec, keys, **rest)
        # A signature that adopt adds to a foreign graph takes row numbers, because the server itself maps strings to
        # rows. So the foreign graph gets no vocabulary that a loader would have to initialize.
        options["sends_rows"] = True
    return _built(path, f"features.{name}", FeatureSpec, name, **options)


def _built(path: Path, where: str, cls: type[_T], *arguments: Any, **options: Any) -> _T:
    try:
        return cls(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ExportError(f"{path}: {where}: {error}") from error


def _sections(path: Path, data: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    sections = data.get(name, {})
    if not isinstance(sections, dict) or not all(isinstance(entry, dict) for entry in sections.values()):
        raise ExportError(f"{path}: {name} is not a table of tables, such as [{name}.film]")
    return cast(Mapping[str, Mapping[str, Any]], sections)


def _refuse_unknown(path: Path, where: str, entry: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(set(entry) - set(known)):
        near = did_you_mean(unknown[0], known)
        raise ExportError(f"{path}: {where}{unknown[0]} is no key of a spec; the keys are {', '.join(known)}{near}")


SPEC_EXAMPLE = """\
[tables.film]
variable = "embedding/film"    # a key of variables/variables.index, or the end of one; `adopt DIR` alone lists them
combiner = "mean"              # of its features; sum, mean or sqrtn

[features.film_id]             # one id per row
table = "film"

[features.genres]              # inputs genres__values and genres__row_splits, weights if wanted
table = "film"
is_ragged = true
max_ids_per_row = 8            # of the padded lookup
on_bad_id = "drop"             # error, drop, drop_negative, default_row (with default_id), clamp
vocabulary = { file = "genres.txt", first_id = 1, oov_id = 0 }   # one string per line, beside this file

[signatures.serving_default]   # a signature that is a lookup already: feature -> its output
outputs = { film_id = "output_0" }
inputs = { film_id = { ids = "film" } }   # where they are not <feature>, <feature>__values, <feature>__row_splits

[lookup]                       # signatures to add; left out: "lookup" on cpu, where no signature fits
device = ["cpu", "tpu_tensor_core"]
batch_sizes = [1, 8, 64]
"""
