"""Reads the TOML or JSON file of `model-export export --config FILE`, and runs the export that it describes."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from model_export.errors import ExportError
from model_export.folder_checks import StoreUri, out_place
from service.errors import did_you_mean

CONFIG_EXAMPLE = """\
factory = "my_package.training:trained_model"   # called without arguments; what it returns is exported
# run = "runs/movielens"                        # or: the folder of a `model-export train` run
# adopt = "saved_models/ranker"                 # or: a foreign SavedModel,
# spec = "ranker.toml"                          #     perhaps with names of your own (`model-export adopt --help`)
out = "models/mine"                             # or s3://bucket/models/mine (docs/object-stores.md)
version = 3                                     # default: the next
lookup_device = ["cpu", "tpu_tensor_core"]      # default: "cpu"
signatures = ["serving_default", "lookup"]      # default: all
batch_sizes = [1, 8, 64, 512]
export_to_tpu = false
allow_nonfinite = false
warmup = true
table_dtype = {item = "int8"}                   # or one for all tables: "float16"; default: "float32"
labels = {item = "items.csv#title"}             # what people call the rows of a table; default: none

[options]                                       # what this kind of model takes beside
max_ids_per_row = 16
"""

_KINDS = ("factory", "run", "adopt")
# Keys of a configuration that are arguments of export(), with the types of their values.
_EXPORT_OPTIONS: Mapping[str, tuple[type, ...]] = {
    "version": (int,),
    "lookup_device": (str, list),
    "signatures": (list,),
    "batch_sizes": (list,),
    "export_to_tpu": (bool,),
    "allow_nonfinite": (bool,),
    "warmup": (bool,),
    "table_dtype": (str, dict),
    "labels": (dict,),
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys((*_KINDS, "spec", "out"), (str,)),
    **_EXPORT_OPTIONS,
    "options": (dict,),
}
# Flags of `model-export export` with the names of a configuration's keys; --labels is not among them, because it is
# given once for each table.
EXPORT_FLAGS = tuple(name for name in _EXPORT_OPTIONS if name != "labels")


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """A checked configuration of an export: the model, the target folder, and further arguments of export()."""

    kind: str
    model: str
    out: Path | StoreUri
    arguments: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    spec: Path | None = None


def read_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ExportConfig:
    """Reads and checks a configuration file; values in `overrides` replace those of the file, by the file's keys.

    Raises:
      ExportError: the file can not be read, has an unknown key or a value of the wrong type, or does not name one
      model.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ExportError(f"cannot read {path}: it is no {kind}: {error}") from error
    if not isinstance(data, dict):
        raise ExportError(f"{path} holds no table of keys")
    if unknown := sorted(set(data) - set(_TYPES)):
        near = did_you_mean(unknown[0], _TYPES)
        raise ExportError(f"{path}: unknown keys {unknown}; there are {', '.join(_TYPES)}{near}")
    data |= {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in data.items():
        if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and bool not in _TYPES[key]):
            names = " or ".join(kind.__name__ for kind in _TYPES[key])
            raise ExportError(f"{path}: {key} is {value!r}, expected {names}")
    named = [kind for kind in _KINDS if kind in data]
    if len(named) != 1:
        raise ExportError(f"{path}: names {named or 'no model'}; exactly one of {', '.join(_KINDS)} is needed")
    if "out" not in data:
        raise ExportError(f"{path}: out is missing: the folder of the versions")
    (kind,) = named
    arguments = {key: data[key] for key in _EXPORT_OPTIONS if key in data}
    if kind == "adopt":
        if superfluous := sorted((set(arguments) - {"version", "labels"}) | ({"options"} & set(data))):
            raise ExportError(f"{path}: {superfluous} do not go with adopt; its spec says what is added")
    elif "spec" in data:
        raise ExportError(f"{path}: spec belongs to adopt")
    spec = Path(data["spec"]) if "spec" in data else None
    return ExportConfig(kind, data[kind], out_place(data["out"]), arguments, data.get("options", {}), spec)


def run_config(config: ExportConfig) -> Path:
    if config.kind == "adopt":
        from model_export.adoption.adopt import adopt

        return adopt(config.model, config.spec, config.out, **config.arguments)
    from model_export.export_model import export

    model = _call(config.model) if config.kind == "factory" else Path(config.model)
    try:
        return export(model, config.out, **config.arguments, **config.options)
    except TypeError as error:
        raise ExportError(str(error)) from error


def _call(factory: str) -> Any:
    module_name, separator, name = factory.partition(":")
    if not separator:
        raise ExportError(f"factory is {factory!r}, expected package.module:function")
    # Add the current folder to sys.path, as `python -m` does, so that a factory in this folder can be imported.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"factory {factory!r}: {error}") from error
    if not callable(function):
        raise ExportError(f"factory {factory!r} is a {type(function).__name__}, expected a function")
    return function()
