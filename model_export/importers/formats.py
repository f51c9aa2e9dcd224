"""Chooses the reader for a table's address: by the option format=, or else by the path's ending or folder's content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_export.errors import ExportError
from model_export.importers import (
    array_store,
    matrix_files,
    parquet_file,
    tensorflow_checkpoint,
    text_files,
    torch_file,
)
from model_export.importers.address import Address, ByteSource
from model_export.importers.table_reader import DUPLICATES, TableReader
from model_export.importers.tensorflow_checkpoint import HASH_TABLE_OPTIONS


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of table files.

    open: makes the reader. options: allowed ones, beside those of all formats. has_names: addresses may be PATH:NAME.
    is_packable: the file may be compressed with gzip, or in a zip archive.
    """

    open: Callable[[Address], TableReader]
    suffixes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    has_names: bool = True
    is_packable: bool = False


_CSV = ("key", "vector", "keys", "header", "key_dtype", "errors")
_FORMATS: Mapping[str, _Format] = {
    "npy": _Format(matrix_files.open_npy, (".npy",), ("dtype",), has_names=False),
    "npz": _Format(matrix_files.open_npz, (".npz",), ("dtype",)),
    "safetensors": _Format(matrix_files.open_safetensors, (".safetensors",)),
    "safetensors-index": _Format(matrix_files.open_sharded, (".safetensors.index.json",)),
    "parquet": _Format(parquet_file.open_parquet, (".parquet",), ("key", "vector", "key_dtype"), has_names=False),
    "feather": _Format(parquet_file.open_feather, (".feather",), ("key", "vector", "key_dtype"), has_names=False),
    "csv": _Format(text_files.open_csv, (".csv",), _CSV, has_names=False, is_packable=True),
    "tsv": _Format(text_files.open_csv, (".tsv",), _CSV, has_names=False, is_packable=True),
    "orbax": _Format(array_store.open_array_store, options=("stacks",)),
    "tensorflow": _Format(tensorflow_checkpoint.open_checkpoint, options=HASH_TABLE_OPTIONS),
    "torch": _Format(torch_file.open_torch, (".pt", ".pth")),
    "hdf5": _Format(matrix_files.open_hdf5, (".h5", ".hdf5", ".keras")),
    "word2vec": _Format(text_files.open_text, (".vec",), ("keys", "errors"), has_names=False, is_packable=True),
    "glove": _Format(text_files.open_text, (".txt",), ("keys", "errors"), has_names=False, is_packable=True),
    "word2vec-binary": _Format(text_files.open_binary, (".bin",), ("errors",), has_names=False, is_packable=True),
    "raw": _Format(matrix_files.open_raw, (), ("dim", "dtype"), has_names=False),
}
_OF_ALL = (DUPLICATES, "format")
# Files whose format is known but not read: the end of their name -> how to get a file that is.
_CONVERSIONS = {
    ".kv": "a pickle of gensim; write another file with KeyedVectors.load(PATH).save_word2vec_format(NEW, binary=True)",
    ".pkl": "a pickle, which may run code when it is read; save its matrix with numpy.save(PATH, MATRIX)",
    "emb_vector": "a matrix without a header, as HugeCTR and HPS write it; add ?format=raw&dim=D, D numbers a row. "
    "Save its keys for --keys with numpy.save(NEW, numpy.fromfile(KEY_FILE, numpy.int64))",
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
    if unknown := sorted(set(address.options) - {*chosen.options, *_OF_ALL}):
        known = ", ".join((*chosen.options, *_OF_ALL))
        raise ExportError(f"{text}: {name} has no option {unknown[0]!r}; there are {known}")
    is_archive = address.path.suffix == ".zip"
    if (is_archive or address.path.suffix == ".gz") and not chosen.is_packable:
        raise ExportError(f"{address.path} is compressed, and {name} is not read from compressed files; unpack it")
    if address.name is not None and not (chosen.has_names or is_archive):
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
        raise ExportError(f"{path} does not exist")
    return said or (_folder_format(path) if path.is_dir() else _file_format(address))


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


def _file_format(address: Address) -> str:
    path = address.path
    if path.name.endswith(".index"):
        return "tensorflow"
    name = ByteSource.of(address).unpacked_name
    for format_name, known in _FORMATS.items():
        if known.suffixes and name.endswith(known.suffixes):
            return format_name
    for end, conversion in _CONVERSIONS.items():
        if name.endswith(end):
            raise ExportError(f"{path} is {conversion}")
    raise ExportError(f"{path}: its format does not show in its name; add ?format= with one of {', '.join(_FORMATS)}")
