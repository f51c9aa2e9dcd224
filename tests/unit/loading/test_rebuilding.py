"""Deltas reach every signature that reads mapped tables, also towers, and are refused where they can not reach one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_export import compact, write_delta
from service.deltas.rules import DeltaRules
from service.deltas.version_deltas import VersionDeltas
from service.engine.deltas import Upsert
from service.engine.engine import Engine
from service.engine.registry import Registry
from service.errors import DeltaRefused
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.types import Array, ModelRef
from tests.conftest import RecordingObserver
from tests.deltas import delta_bytes, drop
from tests.tower_model import TAGS, USERS
from tests.unit.deltas.conftest import Served
from tests.unit.loading.test_loader import opened as opened

TOY = ModelRef("toy")
CHANGE = Upsert(np.ones((1, 2), np.float32), ids=np.array([0]))


def rules(journal: Path | None, wake: Callable[[], None]) -> DeltaRules:
    """Returns DeltaRules with small limits."""
    return DeltaRules(journal, 100, 1 << 20, 1 << 20, wake)


def test_a_signature_with_a_copy_of_its_own_refuses_deltas_unless_forced(
    toy_model: Path, tmp_path: Path, opened: list[object]
) -> None:
    registry = Registry(lambda model, status: None)
    registry.add_model("toy")
    registry.start("toy", 1)

    def look() -> None:
        (holder,) = registry.holders()
        assert isinstance(holder.servable.deltas, VersionDeltas)
        holder.servable.deltas.catch_up(holder, registry.replace)

    version = toy_model / "1"
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[9, 9]]))
    drop(version, 2, delta_bytes(version, 2, "user", [2], [[8, 8]], flags=1))
    loader = ServableLoader(frozenset({"serve"}), "auto", 1, compile_native, deltas=rules(tmp_path / "journal", look))
    registry.publish(loader("toy", 1, version))
    engine = Engine(registry, RecordingObserver(), lambda: 0.0)
    assert engine.table_rows(TOY, "user", np.arange(3)).rows.tolist() == [[0, 0], [1, 10], [8, 8]]
    with pytest.raises(DeltaRefused, match='"serving_default".*force: true'):
        engine.upsert(TOY, "user", CHANGE)
    receipt = engine.upsert(TOY, "user", Upsert(CHANGE.rows, ids=CHANGE.ids, is_forced=True))
    assert receipt.is_visible and receipt.sequence == 3
    assert engine.table_rows(TOY, "user", np.array([0])).rows.tolist() == [[1, 1]]


@pytest.mark.tf
def test_a_tower_answers_as_tensorflow_does_from_the_version_they_are_folded_into(
    tower_version: Path, tmp_path: Path
) -> None:
    version = shutil.copytree(tower_version, tmp_path / "model" / "1")
    # The deltas are forced, because a signature whose graph runs whole would refuse them; the signatures compared here
    # are cut.
    write_delta(version, "user", np.array([1]), np.array([[-2, 5]]), force=True)
    write_delta(version, "tag", np.array([2, 0]), np.array([[4, 4], [0.5, 1]]), force=True)
    loader = ServableLoader(frozenset({"serve"}), "auto", 1, compile_native)
    served = replace(loader, deltas=rules(None, lambda: None))("m", 1, version)
    folded = replace(loader, has_towers=False)("m", 2, compact(version))
    assert served.native is not None and folded.native is not None
    request: dict[str, Array] = {
        "user": np.array([1, 0, 3]),
        "tags__values": np.array([2, 0, 1, 2]),
        "tags__row_splits": np.array([0, 2, 2, 4]),
    }
    for name, inputs in (
        ("serving_default", request),
        ("with_extra", request | {"extra": np.float32([1, 2, 3])}),
        ("keyed", {"names": np.array([b"ann", b"zoe"], object)}),
        ("rows", {"user": np.array([1, 2])}),
        ("matrix", {"ids": np.array([[1, 2]])}),
    ):
        outputs = tuple(served.signatures[name].outputs)
        renamed = {key: inputs.get(key, next(iter(inputs.values()))) for key in served.signatures[name].inputs}
        got, wanted = (one.run(name, renamed) for one in (served.native, folded.native))
        for output in outputs:
            np.testing.assert_array_equal(got[output], wanted[output])
    # The score by hand: -2 + 10 * 5 + 100 * mean(4, 0.5) + 1000 * mean(4, 1) + 0.5.
    got = served.native.run("serving_default", request, ("score",))
    assert got["score"][0].tolist() == [-2 + 50 + 225 + 2500 + 0.5]
    assert (USERS[1], TAGS[2]) == ([2.0, 3.0], [2.0, 2.0])
    served.close()
    folded.close()


def test_a_version_without_deltas_is_the_servable_that_was_loaded(tmp_path: Path, toy_model: Path) -> None:
    served = Served(toy_model / "1", None)
    (holder,) = served.registry.holders()
    served.look()
    assert served.registry.holders() == [holder]
