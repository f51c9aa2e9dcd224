"""Chooses the reader for a table's address: by the option format=, or else by the path's ending or folder's content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_export.errors import ExportError
from model_export.importers import (
    array_store,
    npy_file,
    parquet_file,
    safetensors_file,
    tensorflow_checkpoint,
    word_vectors,
)
from model_export.importers.address import Address
from model_export.importers.table_reader import TableReader


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of table files. open: makes the reader; options: allowed ones; has_names: addresses may be PATH:NAME."""

    open: Callable[[Address], TableReader]
    suffixes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    has_names: bool = True


_FORMATS: Mapping[str, _Format] = {
    "npy": _Format(npy_file.open_npy, (".npy",), ("dtype",), has_names=False),
    "npz": _Format(npy_file.open_npz, (".npz",), ("dtype",)),
    "safetensors": _Format(safetensors_file.open_safetensors, (".safetensors",)),
    "safetensors-index": _Format(safetensors_file.open_sharded, (".safetensors.index.json",)),
    "parquet": _Format(parquet_file.open_parquet, (".parquet",), ("key", "vector"), has_names=False),
    "orbax": _Format(array_store.open_array_store, options=("stacks",)),
    "tensorflow": _Format(tensorflow_checkpoint.open_checkpoint),
    "word2vec": _Format(word_vectors.open_text, (".vec",), has_names=False),
    "glove": _Format(word_vectors.open_text, (".txt",), has_names=False),
    "word2vec-binary": _Format(word_vectors.open_binary, (".bin",), has_names=False),
}


def open_table(text: str, scratch: Path | None = None) -> TableReader:
    """Opens the table at an address and returns its reader; scratch: folder for temporary files.

    Raises:
      ExportError: the file does not exist, its format is unknown, or its contents do not fit the format.
      ArtifactError: the index of a TensorFlow checkpoint can not be read.
    """
    address = Address.parse(text, scratch)
    name = _format_of(address)
    chosen = _FORMATS[name]
    if unknown := sorted(set(address.options) - {"format", *chosen.options}):
        known = ", ".join((*chosen.options, "format"))
        raise ExportError(f"{text}: {name} has no option {unknown[0]!r}; there are {known}")
    if address.name is not None and not chosen.has_names:
        raise ExportError(f"{text}: {name} holds one table, which has no name; leave ':{address.name}' out")
    try:
        return chosen.open(address)
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read {address.path}: {error}") from error


def _format_of(address: Address) -> str:
    said = address.options.get("format")
    if said is not None and said not in _FORMATS:
        raise ExportError(f"{address.text}: format {said!r} is not known; there are {', '.join(_FORMATS)}")
    path = address.path
    if said == "tensorflow" or path.with_name(path.name + ".index").is_file():
        return said or "tensorflow"
    if not path.exists():
        raise ExportError(f"{path} does not exist (of {address.text!r})")
    return said or (_folder_format(path) if path.is_dir() else _file_format(path))


def _folder_format(path: Path) -> str:
    if (path / "saved_model.pb").is_file():
        return "tensorflow"
    if any(path.glob("*.parquet")):
        return "parquet"
    if array_store.is_array_store(path):
        return "orbax"
    raise ExportError(
        f"{path} is a folder, but neither a SavedModel (saved_model.pb) nor a folder of *.parquet files nor an Orbax "
        "checkpoint (manifest.ocdbt, or a folder per array); of a CheckpointManager's folder, name a step's"
    )


def _file_format(path: Path) -> str:
    if path.name.endswith(".index"):
        return "tensorflow"
    for name, known in _FORMATS.items():
        if path.name.endswith(known.suffixes):
            return name
    raise ExportError(f"{path}: its format does not show in its name; add ?format= with one of {', '.join(_FORMATS)}")
