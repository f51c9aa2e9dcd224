"""Writes a second toy model, in manifest format 2: policies, keys, sequences, and a table outside of variables/.

Row i of table `tag` (V=4, D=3) is [i, i*i, 1] and lies in variables/; row i of `item` (V=9, D=2) is [i, 10 i] and lies
in assets.extra/tables.data-00000-of-00001, whose index is compressed.

Strings "red", "grün", "blue" are keys 0, 1, 2 of each string vocabulary; integers 100, -5, 7 of each integer one.

    feature         ids              table  what it shows
    drop_negative   ragged, mean     tag    an id below 0 is dropped, one of V is an error
    clamp           ragged, sum      tag    ids outside read the nearest row
    default         ragged, mean     tag    ids outside read row 3
    positive        ragged, mean     tag    a weight of 0 or less leaves its id out
    one_negative    one              tag    as drop_negative; zeros in place
    one_clamp       one              tag    as clamp
    word            one string       item   an unknown string is dropped: zeros
    words           ragged strings   item   sum; unknown strings go to rows 3, 4, 5
    words_or_rows   ragged, mean     item   int64 input that takes strings too; unknown strings are dropped
    code            one int64 key    item   keys are rows 4, 5, 6; an unknown key is row 8
    codes           ragged keys      item   sum; keys are rows 0, 1, 2, unknown ones go to rows 3, 4
    strict_code     one int64 key    item   an unknown key is an error
    path            sequence of 2    tag    a bad id is an error
    path_default    sequence of 2    tag    a bad id reads row 1
    word_path       sequence of 3    item   strings; unknown ones leave zeros

Signature lookup has all of them; lookup_tpu_tensor_core has clamp, default and words, cut at K = 2, in four rows; and
serving_default is a predict of drop_negative, words, codes and code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.toy_model import TensorInfo, saved_model, table_entry, variable_name, write_bundle, write_manifest

WORDS = ("red", "grün", "blue")
CODES = (100, -5, 7)
TABLES_PREFIX = Path("assets.extra/tables")
_FLOAT, _STRING, _INT64, _INT32 = 1, 7, 9, 3

_RAGGED = ("drop_negative", "clamp", "default", "positive", "words", "words_or_rows", "codes")
_SEQUENCES = {"path": 2, "path_default": 2, "word_path": 3}
_TABLE = dict.fromkeys(("word", "words", "words_or_rows", "code", "codes", "strict_code", "word_path"), "item")
_VOCABULARY = {
    "word": {"on_oov": "drop"},
    "words": {"num_oov_buckets": 3},
    "words_or_rows": {"on_oov": "drop"},
    "code": {"key_dtype": "int64", "first_id": 4, "oov_id": 8},
    "codes": {"key_dtype": "int64", "num_oov_buckets": 2},
    "strict_code": {"key_dtype": "int64"},
    "word_path": {"on_oov": "drop"},
}
_SENDS_STRINGS = ("word", "words", "word_path")
_OPTIONS: dict[str, dict[str, Any]] = {
    "drop_negative": {"combiner": "mean", "on_bad_id": "drop_negative"},
    "clamp": {"combiner": "sum", "on_bad_id": "clamp"},
    "default": {"combiner": "mean", "on_bad_id": "default_row", "default_row": 3},
    "positive": {"combiner": "mean", "on_nonpositive_weight": "drop"},
    "one_negative": {"on_bad_id": "drop_negative"},
    "one_clamp": {"on_bad_id": "clamp"},
    "word": {"on_bad_id": "drop"},
    "words": {"combiner": "sum"},
    "words_or_rows": {"combiner": "mean", "on_bad_id": "drop_negative"},
    "code": {},
    "codes": {"combiner": "sum"},
    "strict_code": {},
    "path": {"max_sequence_length": 2},
    "path_default": {"max_sequence_length": 2, "on_bad_id": "default_row", "default_row": 1},
    "word_path": {"max_sequence_length": 3, "on_bad_id": "drop"},
}
_PADDED = ("clamp", "default", "words")
_PREDICTED = ("drop_negative", "words", "codes", "code")


def policy_tables() -> dict[str, np.ndarray]:
    """Returns the two tables of the policy toy model by name."""
    return {
        "tag": np.array([[i, i * i, 1] for i in range(4)], np.float32),
        "item": np.array([[i, 10 * i] for i in range(9)], np.float32),
    }


def write_policy_model(folder: Path) -> Path:
    """Writes a version folder of the policy toy model, and returns the folder."""
    for name in ("variables", "assets", "assets.extra"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tables = {}
    for name, prefix in (("tag", Path("variables/variables")), ("item", TABLES_PREFIX)):
        table = policy_tables()[name]
        entries = write_bundle(folder / prefix, {variable_name(name): table}, is_compressed=name == "item")
        file = f"{prefix.as_posix()}.data-00000-of-00001"
        tables[name] = table_entry(name, table.shape, entries) | {"file": file}
    (folder / "assets" / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (folder / "assets" / "codes.txt").write_text("".join(f"{code}\n" for code in CODES))
    (folder / "saved_model.pb").write_bytes(saved_model(_signatures()))
    write_manifest(folder, _manifest(tables))
    return folder


def _manifest(tables: dict[str, Any]) -> dict[str, Any]:
    def lookup(name: str, **more: Any) -> dict[str, Any]:
        names = {"ids": name}
        if name in _RAGGED or name in _SEQUENCES:
            names = {"ids": f"{name}__values", "row_splits": f"{name}__row_splits"}
        if name in _RAGGED:
            names["weights"] = f"{name}__weights"
        return names | {"output": name} | _OPTIONS[name] | more

    def predict(name: str) -> dict[str, Any]:
        return {key: value for key, value in lookup(name).items() if key not in ("output", "weights")}

    return {
        "format_version": 2,
        "tables": tables,
        "vocabularies": {
            name: {"file": f"assets/{'codes' if 'key_dtype' in fields else 'words'}.txt", "size": 3, **fields}
            for name, fields in _VOCABULARY.items()
        },
        "features": {
            name: {"table": _TABLE.get(name, "tag")} | ({"vocabulary": name} if name in _VOCABULARY else {})
            for name in _OPTIONS
        },
        "signatures": {
            "lookup": {"kind": "lookup", "device": "cpu", "features": {name: lookup(name) for name in _OPTIONS}},
            "lookup_tpu_tensor_core": {
                "kind": "lookup",
                "device": "tpu_tensor_core",
                "batch_sizes": [4],
                "features": {
                    name: lookup(name, mean_divisor="at_least_one", max_ids_per_row=2, on_too_many_ids="truncate")
                    for name in _PADDED
                },
            },
            "serving_default": {"kind": "predict", "features": {name: predict(name) for name in _PREDICTED}},
        },
    }


def _signatures() -> dict[str, tuple[dict[str, TensorInfo], dict[str, TensorInfo]]]:
    def inputs(names: tuple[str, ...], rows: int, *, weighted: bool) -> dict[str, TensorInfo]:
        result: dict[str, TensorInfo] = {}
        for name in names:
            ids = _STRING if name in _SENDS_STRINGS else rows
            is_ragged = name in _RAGGED or name in _SEQUENCES
            result[f"{name}__values" if is_ragged else name] = (ids, (-1,))
            if is_ragged:
                result[f"{name}__row_splits"] = (_INT64, (-1,))
            if weighted and name in _RAGGED:
                result[f"{name}__weights"] = (_FLOAT, (-1,))
        return result

    def outputs(names: tuple[str, ...]) -> dict[str, TensorInfo]:
        dims = {name: 2 if name in _TABLE else 3 for name in names}
        # The output of a sequence feature has an unknown length in the SignatureDef, as some exports write it.
        return {name: (_FLOAT, (-1, -1, dim) if name in _SEQUENCES else (-1, dim)) for name, dim in dims.items()}

    everything = tuple(_OPTIONS)
    return {
        "lookup": (inputs(everything, _INT64, weighted=True), outputs(everything)),
        "lookup_tpu_tensor_core": (inputs(_PADDED, _INT32, weighted=True), outputs(_PADDED)),
        "serving_default": (inputs(_PREDICTED, _INT64, weighted=False), {"score": (_FLOAT, (-1,))}),
    }
