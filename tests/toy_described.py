"""Writes a third toy model, in manifest format 4: freely named inputs, concatenated outputs, and unusual policies.

Row i of table `tag` (V=4, D=3) is [i, i*i, 1]; row i of `item` (V=9, D=2) is [3 i, 4 i], so that its norm is 5 i; rows
of `half`, `brain` and `double` (V=3, D=2) are [i, i / 4] in float16, bfloat16 and float64.

    signature   features                               outputs
    named       genre, own (ragged), film              genre_vector, own, film
    joined      user, tags, more (ragged)              tags; both = user | tags; all = more | tags | user
    bounded     one, bag, safe, path (max_norm 10)     each its own
    empty       zero, nan, row, cut                    each its own; pair = cut | zero
    blocks      any [B, K], two [B, 2], one            any [B, K, 2], two [B, 4]; wide = one | two
    stored      half, brain, double, steps             each its own, as its table is stored
    hashed      word, code, keras, masked              each its own
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.toy_model import (
    TensorInfo,
    saved_model,
    stored_numbers,
    table_entry,
    variable_name,
    write_bundle,
    write_manifest,
)

_FLOAT, _DOUBLE, _STRING, _INT64, _BFLOAT16, _HALF = 1, 2, 7, 9, 14, 19
WORDS = ("red", "grün", "blue")
MAX_NORM = 10.0
_DTYPES = {"half": "float16", "brain": "bfloat16", "double": "float64"}


def described_tables() -> dict[str, np.ndarray]:
    """Returns the tables by name as float32 numbers, before they are converted to the dtypes in the file."""
    thirds = np.array([[i, i / 4] for i in range(3)], np.float32)
    return {
        "tag": np.array([[i, i * i, 1] for i in range(4)], np.float32),
        "item": np.array([[3 * i, 4 * i] for i in range(9)], np.float32),
        "half": thirds,
        "brain": thirds,
        "double": thirds.astype(np.float64) + 1e-12,
    }


def _ragged(name: str, **more: Any) -> dict[str, Any]:
    return {"ids": f"{name}__values", "row_splits": f"{name}__row_splits", **more}


# Maps the names of a signature and a feature to the table's name, the feature's entry in the manifest, and the rank of
# the ids (None for ragged ids).
_FEATURES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "named": {
        "genre": (
            "tag",
            {
                "ids": "tag_values",
                "row_splits": "tag_offsets",
                "weights": "tag_factors",
                "combiner": "mean",
                "output": "genre_vector",
            },
        ),
        # In this signature, the output and the input of ids have the same name.
        "own": ("item", {"ids": "own", "row_splits": "own_rows", "combiner": "sum", "output": "own"}),
        "film": ("item", {"ids": "film_id", "output": "film"}),
    },
    "joined": {
        "user": ("item", {"ids": "user"}),
        "tags": ("tag", _ragged("tags", combiner="mean", output="tags")),
        "more": ("tag", _ragged("more", combiner="sum", on_bad_id="drop")),
    },
    "bounded": {
        "one": ("item", {"ids": "one", "max_norm": MAX_NORM, "output": "one"}),
        "bag": (
            "item",
            _ragged("bag", weights="bag__weights", combiner="mean", max_norm=MAX_NORM, on_bad_id="drop", output="bag"),
        ),
        "safe": (
            "item",
            _ragged(
                "safe",
                weights="safe__weights",
                combiner="sqrtn",
                max_norm=MAX_NORM,
                on_bad_id="drop_negative",
                on_nonpositive_weight="drop",
                on_empty_row="default_row",
                default_row=8,
                output="safe",
            ),
        ),
        "path": ("item", _ragged("path", max_sequence_length=2, max_norm=MAX_NORM, on_bad_id="clamp", output="path")),
    },
    "empty": {
        "zero": ("tag", _ragged("zero", combiner="mean", output="zero")),
        "nan": ("tag", _ragged("nan", combiner="mean", on_bad_id="drop", on_empty_row="nan", output="nan")),
        "row": (
            "tag",
            _ragged("row", combiner="sum", on_bad_id="drop", on_empty_row="default_row", default_row=2, output="row"),
        ),
        "cut": ("tag", _ragged("cut", combiner="mean", trailing_empty_rows="cut", output="cut")),
    },
    "blocks": {
        "any": ("item", {"ids": "any", "output": "any"}),
        "two": ("item", {"ids": "two", "output": "two", "on_bad_id": "drop"}),
        "one": ("item", {"ids": "one"}),
    },
    "stored": {
        "half": ("half", {"ids": "half", "output": "half"}),
        "brain": ("brain", {"ids": "brain", "output": "brain", "on_bad_id": "drop"}),
        "double": ("double", {"ids": "double", "output": "double", "on_bad_id": "clamp"}),
        "steps": ("double", _ragged("steps", max_sequence_length=2, output="steps")),
    },
    "hashed": {
        "word": ("item", {"ids": "word", "output": "word"}),
        "code": ("item", {"ids": "code", "output": "code"}),
        "keras": ("item", {"ids": "keras", "output": "keras"}),
        "masked": ("item", {"ids": "masked", "output": "masked"}),
    },
}
_JOINED = {
    "joined": {"both": ["user", "tags"], "all": ["more", "tags", "user"]},
    "empty": {"pair": ["cut", "zero"]},
    "blocks": {"wide": ["one", "two"]},
}
_IDS_SHAPES = {"any": (-1, -1), "two": (-1, 2)}
VOCABULARIES: dict[str, dict[str, Any]] = {
    "word": {"file": "", "size": 0, "first_id": 2, "num_oov_buckets": 7},
    "code": {"file": "", "size": 0, "num_oov_buckets": 9, "key_dtype": "int64"},
    # Row numbers as in Keras' StringLookup with two OOV indices and the mask token "": row 0 is the mask, 1 and 2 are
    # buckets.
    "keras": {"size": 3, "first_id": 3, "num_oov_buckets": 2, "first_oov_id": 1, "empty_key_id": 0},
    "masked": {"size": 3, "first_id": 2, "oov_id": 1, "empty_key_id": 0},
}


# Signature -> feature -> the name of its table, and its entry in the manifest.
Features = Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]]


def write_described_model(folder: Path) -> Path:
    """Writes a version folder of the described toy model, and returns the folder."""
    outputs: dict[str, dict[str, TensorInfo]] = {
        "blocks": {"any": (_FLOAT, (-1, -1, 2)), "two": (_FLOAT, (-1, 4)), "wide": (_FLOAT, (-1, 6))}
    }
    return write_lookup_model(
        folder, described_tables(), _FEATURES, dtypes=_DTYPES, joined=_JOINED, outputs=outputs, words=VOCABULARIES
    )


def write_lookup_model(
    folder: Path,
    tables: Mapping[str, np.ndarray],
    features: Features,
    *,
    dtypes: Mapping[str, str] = MappingProxyType({}),
    joined: Mapping[str, Mapping[str, list[str]]] = MappingProxyType({}),
    outputs: Mapping[str, Mapping[str, TensorInfo]] = MappingProxyType({}),
    words: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Path:
    """Writes a version folder with lookup signatures, whose graph does nothing; returns the folder.

    Args:
      tables: the tables as float32 or float64 numbers. dtypes: of those that are not stored as float32.
      features: the features of each signature; `joined` has the outputs that join several of them.
      outputs: the outputs whose shape or dtype is not that of one feature's vectors.
      words: the vocabularies of the signature "hashed", by feature.
    """
    for name in ("variables", "assets", "assets.extra"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    stored = {variable_name(name): stored_numbers(table, dtypes.get(name, "float32")) for name, table in tables.items()}
    bfloat16 = {variable_name(name): dtype for name, dtype in dtypes.items() if dtype == "bfloat16"}
    entries = write_bundle(folder / "variables" / "variables", stored, dtypes=bfloat16)
    (folder / "assets" / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    signatures = _signatures(tables, features, dtypes, joined, outputs)
    (folder / "saved_model.pb").write_bytes(saved_model(signatures))
    manifest = {
        "format_version": 4,
        "tables": {
            name: table_entry(name, table.shape, entries, dtypes.get(name, "float32")) for name, table in tables.items()
        },
        "vocabularies": {name: {"file": "assets/words.txt", **fields} for name, fields in words.items()},
        "features": {
            name: {"table": table} | ({"vocabulary": name} if name in words else {})
            for of_signature in features.values()
            for name, (table, _) in of_signature.items()
        },
        "signatures": {
            signature: {
                "kind": "lookup",
                "device": "cpu",
                "features": {name: dict(fields) for name, (_, fields) in of_signature.items()},
                "concatenated": joined.get(signature, {}),
            }
            for signature, of_signature in features.items()
        },
    }
    write_manifest(folder, manifest)
    return folder


def _signatures(
    tables: Mapping[str, np.ndarray],
    features: Features,
    dtypes: Mapping[str, str],
    joined: Mapping[str, Mapping[str, list[str]]],
    other_outputs: Mapping[str, Mapping[str, TensorInfo]],
) -> dict[str, tuple[dict[str, TensorInfo], dict[str, TensorInfo]]]:
    """Returns (inputs, outputs) of each signature, each tensor as (DataType number, shape)."""
    numbers = {"float16": _HALF, "bfloat16": _BFLOAT16, "float64": _DOUBLE}
    dims = {name: table.shape[1] for name, table in tables.items()}
    found = {}
    for signature, of_signature in features.items():
        inputs: dict[str, TensorInfo] = {}
        outputs: dict[str, TensorInfo] = {}
        for name, (table, fields) in of_signature.items():
            is_text = signature == "hashed" and name != "code"
            inputs[fields["ids"]] = (_STRING if is_text else _INT64, _IDS_SHAPES.get(name, (-1,)))
            if "row_splits" in fields:
                inputs[fields["row_splits"]] = (_INT64, (-1,))
            if "weights" in fields:
                inputs[fields["weights"]] = (_FLOAT, (-1,))
            if "output" in fields:
                length = fields.get("max_sequence_length")
                shape = (-1, dims[table]) if length is None else (-1, length, dims[table])
                is_stored = "combiner" not in fields and "max_norm" not in fields
                dtype = numbers.get(dtypes.get(table, ""), _FLOAT) if is_stored else _FLOAT
                outputs[fields["output"]] = (dtype, shape)
        for name, parts in joined.get(signature, {}).items():
            outputs[name] = (_FLOAT, (-1, sum(dims[of_signature[part][0]] for part in parts)))
        found[signature] = (inputs, {**outputs, **other_outputs.get(signature, {})})
    return found
