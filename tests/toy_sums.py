"""Writes a toy model whose sums round: a table of random numbers for each dtype, each combiner and order of additions.

Table `numbers_<dtype>` (V=50, D=109) has random float32 numbers, among them denormal numbers and -0.0. Signature
`<dtype>` has a ragged feature for each pair of a combiner and an order, with weights where the order takes some, and
three more with max_norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.toy_model import (
    TensorInfo,
    int4_steps,
    saved_model,
    stored_numbers,
    table_entry,
    variable_name,
    write_bundle,
    write_manifest,
)

# The core reads a row in groups of 64, 32 and 8 columns, and the rest one by one.
VOCABULARY_SIZE, DIM = 50, 64 + 32 + 8 + 5
DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
COMBINERS = ("sum", "mean", "sqrtn")
# Order of additions -> whether its op takes weights.
SUMMATIONS = {"in_order": True, "four_lanes": True, "blocks_of_8": False, "segment_mean": False}
_FLOAT, _INT64 = 1, 9


def features(dtype: str) -> dict[str, dict[str, Any]]:
    """Returns the features of a signature, as the manifest describes them."""
    found = {}
    for combiner in COMBINERS:
        for summation, has_weights in SUMMATIONS.items():
            found[f"{dtype}_{combiner}_{summation}"] = {"summation": summation, "combiner": combiner}
            if has_weights:
                found[f"{dtype}_{combiner}_{summation}"]["mean_divisor"] = "at_least_one"
        found[f"{dtype}_{combiner}_bounded"] = {"summation": "in_order", "combiner": combiner, "max_norm": 2.5}
    for name, entry in found.items():
        entry |= {"ids": f"{name}__values", "row_splits": f"{name}__row_splits", "output": name}
        if SUMMATIONS[entry["summation"]]:
            entry["weights"] = f"{name}__weights"
    return found


def write_sums_model(folder: Path) -> Path:
    """Writes a version folder of the model, and returns the folder."""
    for name in ("variables", "assets.extra"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    stored: dict[str, np.ndarray] = {}
    for seed, dtype in enumerate(DTYPES):
        random = np.random.default_rng(seed)
        numbers = random.normal(size=(VOCABULARY_SIZE, DIM)).astype(np.float32)
        numbers[3], numbers[4], numbers[5, ::2] = -0.0, 1e-39, 1e4
        name = f"numbers_{dtype}"
        if dtype == "int8":
            stored[variable_name(name)] = random.integers(-127, 128, numbers.shape).astype(np.int8)
            stored[variable_name(name, "scales")] = random.uniform(1e-3, 1e-2, VOCABULARY_SIZE).astype(np.float32)
        else:
            stored[variable_name(name)] = stored_numbers(numbers, dtype)
        if dtype == "int4":
            stored[variable_name(name, "scales")] = int4_steps(numbers)[1][:, 0]
    kinds = {variable_name("numbers_bfloat16"): "bfloat16"}
    entries = write_bundle(folder / "variables" / "variables", stored, dtypes=kinds)
    (folder / "saved_model.pb").write_bytes(saved_model({dtype: _signature(dtype) for dtype in DTYPES}))
    names = {f"numbers_{dtype}": dtype for dtype in DTYPES}
    tables = {name: table_entry(name, (VOCABULARY_SIZE, DIM), entries, dtype) for name, dtype in names.items()}
    manifest = {
        "format_version": 4,
        "tables": tables,
        "features": {name: {"table": f"numbers_{dtype}"} for dtype in DTYPES for name in features(dtype)},
        "signatures": {dtype: {"kind": "lookup", "device": "cpu", "features": features(dtype)} for dtype in DTYPES},
    }
    write_manifest(folder, manifest)
    return folder


def _signature(dtype: str) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    inputs: dict[str, TensorInfo] = {}
    for entry in features(dtype).values():
        inputs |= {entry["ids"]: (_INT64, (-1,)), entry["row_splits"]: (_INT64, (-1,))}
        if "weights" in entry:
            inputs[entry["weights"]] = (_FLOAT, (-1,))
    return inputs, {name: (_FLOAT, (-1, DIM)) for name in features(dtype)}
