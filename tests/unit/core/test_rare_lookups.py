"""The core answers joined sequences, rows as stored, cut rows and rows by id, and refuses their faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.core_lookups import CoreLookups
from tests.toy_described import write_described_model, write_lookup_model

NATIVE = pytest.importorskip("service._native", reason="the native core is not built")

# DataType numbers of TensorFlow.
_FLOAT, _DOUBLE, _HALF = 1, 2, 19
NUMBERS = np.arange(1, 13, dtype=np.float64).reshape(4, 3) / 8


def ragged(name: str, **more: object) -> dict[str, object]:
    """Returns the manifest's entry of a ragged feature."""
    return {"ids": f"{name}__values", "row_splits": f"{name}__row_splits", **more}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> CoreLookups:
    """A model whose sequences, of float32 and as they are stored, stand side by side."""
    folder = tmp_path_factory.mktemp("rare") / "1"
    tables = {"plain": NUMBERS.astype(np.float32), "half": NUMBERS.astype(np.float32), "double": NUMBERS}
    steps = {"max_sequence_length": 2, "on_bad_id": "drop"}
    features = {
        "side": {
            "old": ("plain", ragged("old", **steps)),
            "new": ("plain", ragged("new", **{**steps, "on_bad_id": "error"})),
            "bound": ("plain", ragged("bound", **steps, max_norm=0.5)),
        },
        "stored": {
            "first": ("half", ragged("first", **steps)),
            "second": ("half", ragged("second", **steps)),
            "wide": ("double", ragged("wide", **steps)),
            "one": ("double", {"ids": "one"}),
        },
    }
    joined = {
        "side": {"pair": ["old", "new"], "flat": ["new", "bound", "old"]},
        "stored": {"halves": ["first", "second"], "doubles": ["wide", "one"]},
    }
    outputs = {
        "side": {"pair": (_FLOAT, (-1, 2, 6)), "flat": (_FLOAT, (-1, 18))},
        "stored": {"halves": (_HALF, (-1, 2, 6)), "doubles": (_DOUBLE, (-1, 9))},
    }
    dtypes = {"half": "float16", "double": "float64"}
    return CoreLookups(
        write_lookup_model(folder, tables, features, dtypes=dtypes, joined=joined, outputs=outputs), NATIVE
    )


def sent(**features: list[list[int]]) -> dict[str, np.ndarray]:
    """Returns the tensors of ragged features."""
    arrays = {}
    for name, rows in features.items():
        arrays[f"{name}__values"] = np.array([one for row in rows for one in row], np.int64)
        arrays[f"{name}__row_splits"] = np.cumsum([0, *map(len, rows)])
    return arrays


def steps_of(rows: list[list[int]], table: np.ndarray = NUMBERS) -> np.ndarray:
    """Returns [B, 2, D]: the table rows of the first two ids of each row; zeros for an id below 0 and for no id."""
    found = np.zeros((len(rows), 2, table.shape[1]))
    for row, ids in enumerate(rows):
        for place, one in enumerate(ids[:2]):
            found[row, place] = table[one] if one >= 0 else 0
    return found


OLD, NEW = [[1, 2, 0], [], [-5]], [[3], [0, 1], [2, 2, 9]]


def test_sequences_stand_side_by_side(core: CoreLookups) -> None:
    found = core.predict("side", sent(old=OLD, new=NEW, bound=NEW))
    np.testing.assert_array_equal(found["pair"], np.concatenate([steps_of(OLD), steps_of(NEW)], axis=2))
    norms = np.linalg.norm(NUMBERS, axis=1, keepdims=True)
    bound = NUMBERS * 0.5 / np.maximum(norms, 0.5)
    flat = [steps_of(NEW), steps_of(NEW, bound), steps_of(OLD)]
    wanted = np.concatenate([one.reshape(3, 6) for one in flat], axis=1)
    np.testing.assert_allclose(found["flat"], wanted, rtol=1e-6)
    assert core.predict("side", sent(old=[], new=[]))["pair"].shape == (0, 2, 6)


def test_stored_rows_stand_side_by_side(core: CoreLookups) -> None:
    found = core.predict("stored", sent(first=OLD, second=[[3], [0, 1], []], wide=OLD) | {"one": np.array([0, 1, 3])})
    assert (found["halves"].dtype, found["doubles"].dtype) == (np.float16, np.float64)
    wanted = np.concatenate([steps_of(OLD), steps_of([[3], [0, 1], []])], axis=2)
    np.testing.assert_array_equal(found["halves"], wanted)
    np.testing.assert_array_equal(found["doubles"], np.hstack([steps_of(OLD).reshape(3, 6), NUMBERS[[0, 1, 3]]]))


def test_a_refused_id_is_named_by_its_place_in_the_request(core: CoreLookups) -> None:
    named = 'input \\\\"new\\\\": id 4 at position 3 is out of range, its table has ids 0 to 3'
    with pytest.raises(ValueError, match=named):
        core.predict("side", sent(old=OLD, new=[[3], [0], [2, 4]]))
    with pytest.raises(ValueError, match="have different numbers|differ in their number of rows"):
        core.predict("side", sent(old=[[1]], new=NEW))


def test_json_has_the_numbers_of_stored_rows(core: CoreLookups) -> None:
    body = {"features": {"first": [[1]], "second": [[0, 3]]}, "signature_name": "stored"}
    (row,) = json.loads(core.post("/v1/models/m:lookup", json.dumps(body).encode()))["embeddings"]["halves"]
    assert row == np.concatenate([steps_of([[1]]), steps_of([[0, 3]])], axis=2)[0].tolist()
    infer = {
        "inputs": [
            {"name": "wide__values", "shape": [1], "datatype": "INT64", "data": [3]},
            {"name": "wide__row_splits", "shape": [2], "datatype": "INT64", "data": [0, 1]},
            {"name": "one", "shape": [1], "datatype": "INT64", "data": [2]},
        ],
        "parameters": {"signature_name": "stored"},
    }
    (output,) = json.loads(core.post("/v2/models/m/infer", json.dumps(infer).encode()))["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP64", [1, 9])
    assert output["data"] == [*NUMBERS[3], 0, 0, 0, *NUMBERS[2]]


def test_rows_of_every_table_come_by_id(core: CoreLookups, tmp_path: Path) -> None:
    for table in ("plain", "half", "double"):
        answer = json.loads(core.post(f"/v1/models/m/tables/{table}:rows", b'{"ids": [3, 0, 3]}'))
        assert answer == {"rows": NUMBERS[[3, 0, 3]].tolist()}
        with pytest.raises(ValueError, match=r'input \\"ids\\": id 4 at position 1 is out of range'):
            core.post(f"/v1/models/m/tables/{table}:rows", b'{"ids": [3, 4]}')
    unread = CoreLookups(write_lookup_model(tmp_path / "1", {"plain": NUMBERS, "other": 2 * NUMBERS}, {}), NATIVE)
    answer = json.loads(unread.post("/v1/models/m/tables/other:rows", b'{"ids": [1]}'))
    assert answer == {"rows": (2 * NUMBERS[[1]]).tolist()}


def test_rows_that_are_cut_are_checked_and_counted(tmp_path: Path) -> None:
    fields = ragged("bag", combiner="mean", trailing_empty_rows="cut", on_bad_id="drop_negative", max_ids_per_row=2)
    tables, features = (
        {"plain": NUMBERS.astype(np.float32)},
        {"lookup": {"bag": ("plain", {**fields, "output": "bag"})}},
    )
    core = CoreLookups(write_lookup_model(tmp_path / "1", tables, features), NATIVE)
    assert core.predict("lookup", sent(bag=[[-1], [2], [-1, -2], [], [-3]]))["bag"].tolist() == [
        [0, 0, 0],
        NUMBERS[2].tolist(),
    ]
    assert core.servable.counts() == [("lookup", 0, 5, 4)]
    assert core.predict("lookup", sent(bag=[[-1], []]))["bag"].shape == (0, 3)
    with pytest.raises(ValueError, match="id 4 at position 1 is out of range"):
        core.predict("lookup", sent(bag=[[2], [4]]))
    with pytest.raises(ValueError, match="row 1 has 3 ids, this signature takes at most 2"):
        core.predict("lookup", sent(bag=[[2], [-1, -1, -1]]))


def test_joined_features_tell_of_rows_that_were_cut(tmp_path: Path) -> None:
    core = CoreLookups(write_described_model(tmp_path / "1"), NATIVE)
    found = core.predict("empty", sent(cut=[[1], [2]], zero=[[0], []]))
    np.testing.assert_array_equal(found["pair"], np.hstack([found["cut"], found["zero"]]))
    told = "has 1 .its last 1 rows hold no ids, and the model's graph leaves them out."
    with pytest.raises(ValueError, match=told):
        core.predict("empty", sent(cut=[[1], []], zero=[[0], []]))


@pytest.mark.parametrize("weight", [0.0, -0.0, np.nan, -1.0, 1e-39])
def test_a_row_whose_ids_are_dropped_by_weight_is_empty(tmp_path: Path, weight: float) -> None:
    fields = ragged(
        "bag",
        weights="bag__weights",
        combiner="mean",
        on_nonpositive_weight="drop",
        on_empty_row="nan",
        trailing_empty_rows="cut",
        output="bag",
    )
    tables = {"plain": NUMBERS.astype(np.float32)}
    core = CoreLookups(write_lookup_model(tmp_path / "1", tables, {"lookup": {"bag": ("plain", fields)}}), NATIVE)
    factors = np.array([1, weight, weight, 2, weight], np.float32)
    found = core.predict("lookup", sent(bag=[[1, 2], [3], [0], [1]]) | {"bag__weights": factors})["bag"]
    np.testing.assert_array_equal(found, [NUMBERS[1], [np.nan] * 3, NUMBERS[0]])
