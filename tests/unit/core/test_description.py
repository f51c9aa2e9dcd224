"""The native core gets lookups as numbers and addresses, and does not get signatures that these can not express."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.description import Described, describe, left_out
from service.types import TableCounts
from tests.core_lookups import opened
from tests.toy_described import MAX_NORM, write_described_model, write_lookup_model
from tests.toy_model import manifest_of, write_toy_model
from tests.toy_policies import write_policy_model

pytest.importorskip("service._native", reason="the native core is not built")


def described(folder: Path) -> tuple[Described, dict[str, Any]]:
    """Returns the description of an artifact as version 7 of model m, and the object in its text."""
    lookups = opened(folder)
    found = describe("m", 7, lookups, others=left_out(lookups, lookups.signatures, {}))
    return found, json.loads(found.text)


def signature(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a signature from the description for the core, with its features and outputs by name."""
    found = dict(next(one for one in document["signatures"] if one["name"] == name))
    found["features"] = {one["name"]: one for one in found["features"]}
    found["outputs"] = {one["name"]: one for one in found["outputs"]}
    return found


def at(found: Described, place: int, dtype: str, count: int) -> list[Any]:
    """Returns the first `count` numbers of a buffer."""
    return list(found.buffers[place].view(np.uint8)[: np.dtype(dtype).itemsize * count].view(dtype).tolist())


def test_paged_tables_are_said_and_their_files_mapped(tmp_path: Path) -> None:
    native = pytest.importorskip("service._native", reason="the native core is not built")
    write_toy_model(tmp_path / "1", dtype="int8")
    assert not any(one["paging"] != "off" for one in described(tmp_path / "1")[1]["tables"])
    found = describe("m", 7, replace(opened(tmp_path / "1"), paging="larger"))
    assert all(one["paging"] == "larger" for one in json.loads(found.text)["tables"])
    pager = native.Pager(1 << 20)
    native.Servable(*found.arguments, None, pager)
    text, buffers, mark, _ = found.arguments
    # Tables that lie in no map of a file are in memory already.
    native.Servable(text, buffers, mark, [], None, pager)


# What a description or its buffers may be changed to, and the part that the core then names.
FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an address": (lambda one: one["tables"][0].update(rows_at=4096), "rows_at"),
    "no such buffer": (lambda one: one["tables"][0].update(rows=4096), "buffer 4096"),
    "no rows": (lambda one: one["tables"][0].update(rows=None), "table"),
    "too many rows": (lambda one: one["tables"][0].update(vocabulary_size=1 << 40), "table"),
    "wide rows": (lambda one: one["tables"][0].update(embedding_dim=1 << 62), "table"),
    "wider numbers": (lambda one: one["tables"][0].update(dtype="float64"), "table"),
    "no scales": (lambda one: one["tables"][0].update(dtype="int8"), "table"),
    "slots as keys": (lambda one: one["vocabularies"][0].update(keys=one["vocabularies"][0]["slots"]), "vocabulary"),
    "keys as slots": (lambda one: one["vocabularies"][0].update(slots=one["vocabularies"][0]["keys"]), "vocabulary"),
    "rows as lines": (lambda one: one["vocabularies"][0].update(data=None), "vocabulary"),
    "no such table": (lambda one: one["signatures"][0]["features"][0].update(table=77), "table"),
    "no such input": (lambda one: one["signatures"][0]["features"][0].update(ids=77), "input"),
}


@pytest.mark.parametrize("change", FORGED)
def test_a_description_that_its_buffers_do_not_fit_is_refused(toy_model: Path, change: str) -> None:
    native = pytest.importorskip("service._native", reason="the native core is not built")
    found, document = described(toy_model / "1")
    forge, named = FORGED[change]
    forge(document)
    with pytest.raises(ValueError, match=named):
        native.Servable(json.dumps(document), *found.arguments[1:])


def test_batch_sizes_bound_the_rows(toy_model: Path) -> None:
    _, document = described(toy_model / "1")
    tensor_core = signature(document, "lookup_tpu_tensor_core")
    entry = manifest_of(toy_model / "1")
    assert tensor_core["max_rows"] == entry.signatures["lookup_tpu_tensor_core"].batch_sizes[-1]


def test_vocabularies_are_named_by_their_arrays(toy_model: Path) -> None:
    found, document = described(toy_model / "1")
    lookup = signature(document, "lookup")
    numbers = {one["vocabulary"] for one in lookup["inputs"] if one["name"].startswith("tags__values")}
    words = document["vocabularies"][numbers.pop()]
    assert words["has_strings"]
    lines = found.buffers[words["data"]].tobytes().split(b"\n")
    assert at(found, words["keys"], "<i8", 2) == [0, len(lines[0]) + 1]
    slots = found.buffers[words["slots"]].size
    assert slots & (slots - 1) == 0
    assert not words["rows"]["is_hashed"]


def test_all_lookups_are_described(tmp_path: Path) -> None:
    write_described_model(tmp_path / "1")
    _, document = described(tmp_path / "1")
    lookups = opened(tmp_path / "1")
    assert {one["name"] for one in document["signatures"]} == lookups.lookup_names == lookups.signatures.keys()
    assert left_out(lookups, lookups.signatures, {}) == {}
    bounded = signature(document, "bounded")["features"]
    assert {one["max_norm"] for one in bounded.values()} == {MAX_NORM}
    stored = signature(document, "stored")
    dtypes = {"half": "float16", "brain": "bfloat16", "double": "float64", "steps": "float64"}
    assert {name: one["dtype"] for name, one in stored["features"].items()} == dtypes
    assert {name: one["dtype"] for name, one in stored["outputs"].items()} == dtypes
    empty = signature(document, "empty")["features"]
    assert {name: (one["on_empty_row"], one["trailing_empty_rows"]) for name, one in empty.items()} == {
        "zero": ("zeros", "keep"),
        "nan": ("nan", "keep"),
        "row": ("default_row", "keep"),
        "cut": ("zeros", "cut"),
    }
    blocks = signature(document, "blocks")
    assert {name: one["is_flat"] for name, one in blocks["outputs"].items()} == {
        "any": False,
        "two": True,
        "wide": True,
    }
    hashed = [one["rows"] for one in document["vocabularies"]]
    assert {(one["first_id"], one["num_oov_buckets"]) for one in hashed if one["is_hashed"]} == {(2, 7), (0, 9)}


def test_a_version_without_graphs_names_its_predict(tmp_path: Path) -> None:
    write_toy_model(tmp_path / "1")
    _, document = described(tmp_path / "1")
    assert {one["name"]: one["why"] for one in document["other_signatures"]} == {"serving_default": "no_tensorflow"}


def test_only_signatures_that_classify_could_answer_bring_their_definition(tmp_path: Path) -> None:
    # The core's refusals quote the definition of a signature with one input, and one or two outputs.
    table = np.ones((3, 2), np.float32)
    features = {name: ("t", {"ids": name, "output": f"{name}_row"}) for name in ("a", "b")}
    signatures = {"one": {"a": features["a"]}, "two": features}
    _, document = described(write_lookup_model(tmp_path / "1", {"t": table}, signatures))
    assert (
        'name: "one_a:0"' in signature(document, "one")["definition"] and signature(document, "two")["definition"] == ""
    )


def test_ids_that_read_another_row_count_as_read(tmp_path: Path) -> None:
    write_policy_model(tmp_path / "1")
    found, _ = described(tmp_path / "1")
    plans = found.features["lookup"]
    drops, clamps = (
        next(i for i, plan in enumerate(plans) if plan.feature.on_bad_id == policy) for policy in ("drop", "clamp")
    )
    counts = found.table_counts([("lookup", drops, 5, 2), ("lookup", clamps, 5, 2)], [0] * len(found.key_tables))
    row_bytes = [plans[number].table.row_bytes for number in (drops, clamps)]
    tables = [plans[number].table.info.name for number in (drops, clamps)]
    wanted: dict[str, TableCounts] = {}
    for table, read_bytes in zip(tables, (3 * row_bytes[0], 5 * row_bytes[1]), strict=True):
        before = wanted.get(table, TableCounts())
        wanted[table] = TableCounts(before.ids + 5, before.missing_ids + 2, 0, before.read_bytes + read_bytes)
    assert {name: count for name, count in counts.items() if any(count)} == wanted


@pytest.mark.parametrize("write", [write_toy_model, write_policy_model, write_described_model])
def test_the_core_compiles_what_it_is_told(tmp_path: Path, write: Any) -> None:
    native = pytest.importorskip("service._native", reason="the native core is not built")
    write(tmp_path / "1")
    found, document = described(tmp_path / "1")
    compiled = native.Servable(*found.arguments)
    assert compiled.num_leases == 0
    counted = [(name, number) for name, number, *counts in compiled.counts() if counts == [0, 0]]
    assert len(counted) == sum(len(one["features"]) for one in document["signatures"])
    tables = {
        name: plan.table for plans in found.features.values() for plan in plans for name in [plan.table.info.name]
    }
    moved = compiled.on_tables(found.buffers_of(tables))
    assert moved.counts() == compiled.counts()


def test_keys_that_a_vocabulary_lacks_are_counted_for_its_table(toy_model: Path) -> None:
    found, document = described(toy_model / "1")
    assert len(found.key_tables) == len(document["vocabularies"]) == 1
    assert found.table_counts([("lookup", 0, 0, 0)], [2])["tag"] == TableCounts(oov_keys=2)
