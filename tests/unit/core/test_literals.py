"""The core reads every literal that a manifest may hold, and answers with the reference's bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from service.artifact.manifest import LookupFeature, Summation
from service.artifact.signature_def import read_signatures
from service.core.description import CORE_DTYPES, Described, describe, left_out
from service.reference.lookups import look_up
from service.reference.rows import Table
from service.tables.backend import LookupBackend, OpenedLookups, open_lookups
from service.types import TensorSpec
from tests.conformance.wires import PREDICT, predict_outputs, predict_request
from tests.oracle import ragged
from tests.stored_tables import DTYPES, store
from tests.toy_model import manifest_of, write_toy_model

NATIVE = pytest.importorskip("service._native", reason="the native core is not built")

# Rows of all lengths in which the orders of additions differ. The toy model's other features are not sent.
LENGTHS = [*range(1, 41), 1000]
# Fields of a feature that a manifest only takes together with other fields.
FURTHER: dict[str, dict[str, Any]] = {"truncate": {"max_ids_per_row": 1000}}


def choices(kind: type) -> dict[str, tuple[str, ...]]:
    """Returns the literals of each field of a dataclass that has an enumerated type, by the field's name."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        options = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
        if options:
            found[name] = get_args(options[0])
    return found


def literals(kind: type) -> list[tuple[str, str]]:
    """Returns each pair of an enumerated field and one of its literals."""
    return [(name, option) for name, options in choices(kind).items() for option in options]


def opened(folder: Path, dtype: str = "float32", **fields: Any) -> OpenedLookups:
    """Opens a toy model whose feature "tags" reads a table of random numbers, with these fields and without weights."""
    manifest = manifest_of(write_toy_model(folder))
    found = open_lookups(folder, manifest, read_signatures(folder / "saved_model.pb"))
    numbers = np.random.default_rng(5).standard_normal((50, 20)).astype(np.float32)
    table = store(numbers, dtype).mapped
    plan = found.backend.plans["lookup"]
    tags = plan.features["tags"]
    tags = replace(tags, table=table, feature=replace(tags.feature, weights=None, **fields))
    alone = plan._replace(features={"tags": tags}, outputs={"tags": plan.outputs["tags"]})
    spec = found.signatures["lookup"]
    kept = {name: one for name, one in spec.inputs.items() if name in ("tags__values", "tags__row_splits")}
    names = tuple(one for one in spec.ragged_names if one.feature == "tags")
    spec = replace(spec, inputs=kept, outputs={"tags": spec.outputs["tags"]}, ragged_names=names)
    return replace(
        found,
        tables={**found.tables, "tag": table},
        signatures={"lookup": spec},
        backend=LookupBackend({"lookup": alone}, found.backend.vocabularies),
    )


def told(lookups: OpenedLookups) -> Described:
    """Returns the description of lookups that the core must be able to express."""
    others = left_out(lookups, lookups.signatures, {})
    assert not [one for one in others.values() if one.why == "can_not_run"]
    return describe("m", 1, lookups, others=others)


def answers(lookups: OpenedLookups, ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of "tags" by the core and by the reference."""
    values, splits = ragged(ids)
    inputs = {"tags__values": values, "tags__row_splits": splits}
    described = told(lookups)
    compiled = NATIVE.Servable(*described.arguments)
    data = NATIVE.Forms([("m", [(1, compiled)], {}, 0.0, "")]).grpc(PREDICT, predict_request("m", inputs))
    core = predict_outputs(data)["tags"]
    plan, table = lookups.backend.plans["lookup"].features["tags"], lookups.tables["tag"]
    scales = table.scales[:, None] if table.scales.size else None
    return core, look_up(plan.feature, Table(table.info, table.weights, scales), inputs)


@pytest.mark.parametrize(("field", "literal"), literals(LookupFeature))
def test_the_core_answers_a_feature_with_each_literal(tmp_path: Path, field: str, literal: str) -> None:
    lookups = opened(tmp_path / "1", **{"combiner": "mean", field: literal, **FURTHER.get(literal, {})})
    ids = [[(7 * row + 3 * k) % 50 for k in range(size)] for row, size in enumerate(LENGTHS)]
    core, reference = answers(lookups, ids)
    assert core.tobytes() == reference.tobytes()


@pytest.mark.tf
@pytest.mark.parametrize("combiner", choices(LookupFeature)["combiner"])
@pytest.mark.parametrize("summation", choices(LookupFeature)["summation"])
def test_sums_are_those_of_tensorflow_at_each_length(
    tf: Any, tmp_path: Path, summation: Summation, combiner: str
) -> None:
    lookups = opened(tmp_path / "1", combiner=combiner, summation=summation)
    lengths = [0, *LENGTHS, 0, 7, 0]
    ids = [[(11 * row + 3 * k) % 50 for k in range(size)] for row, size in enumerate(lengths)]
    core, reference = answers(lookups, ids)
    assert core.tobytes() == reference.tobytes()
    table = lookups.tables["tag"].weights
    rows, flat = np.repeat(np.arange(len(ids)), lengths), np.concatenate([np.array(one, np.int64) for one in ids])
    if summation == "blocks_of_8":
        names = {"sum": "segment_sum", "mean": "segment_mean", "sqrtn": "segment_sqrt_n"}
        wanted = getattr(tf.sparse, names[combiner])(table, flat, rows, num_segments=len(ids)).numpy()
        assert core.tobytes() == wanted.tobytes()
    elif (summation, combiner) in (("four_lanes", "sum"), ("segment_mean", "mean")):
        wanted = getattr(tf.math, f"segment_{combiner}")(table[flat], rows).numpy()
        assert core[: len(wanted)].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_core_reads_a_table_of_each_dtype(tmp_path: Path, dtype: str) -> None:
    core, reference = answers(opened(tmp_path / "1", dtype), [[1, 2, 49], [3]])
    assert core.tobytes() == reference.tobytes()


@pytest.mark.parametrize("bounds", choices(TensorSpec)["bounds"])
@pytest.mark.parametrize("dtype", sorted(CORE_DTYPES))
def test_the_core_compiles_inputs_of_each_dtype(tmp_path: Path, dtype: str, bounds: str) -> None:
    found = told(opened(tmp_path / "1"))
    document = json.loads(found.text)
    document["signatures"][0]["inputs"][0] |= {"dtype": dtype, "bounds": bounds}
    NATIVE.Servable(json.dumps(document), found.buffers)
