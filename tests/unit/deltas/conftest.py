"""Fixtures of the delta tests: a served toy version whose rows tests change by deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from service.control.engine import Engine
from service.core.native_servable import compile_native
from service.deltas.rules import DeltaRules
from service.deltas.version_deltas import VersionDeltas
from service.loading.loader import ServableLoader
from service.types import ModelRef
from service.versions.registry import Registry
from tests.conftest import RecordingObserver
from tests.deltas import delta_bytes, drop
from tests.toy_model import write_toy_model


@dataclass
class Served:
    """Version 1 of model "toy", served by an engine that applies its deltas."""

    version: Path
    journal: Path | None
    registry: Registry = field(default_factory=lambda: Registry(lambda model, status: None))

    def __post_init__(self) -> None:
        self.engine = Engine(self.registry, RecordingObserver(), lambda: 0.0)
        rules = DeltaRules(self.journal, 1 << 20, 1 << 20, self.look)
        self.registry.add_model("toy")
        self.registry.start("toy", 1)
        load = ServableLoader(frozenset({"serve"}), "off", compile_native, deltas=rules)
        self.registry.publish(load("toy", 1, self.version))

    @property
    def deltas(self) -> VersionDeltas:
        """The object that applies the version's deltas."""
        (holder,) = self.registry.holders()
        assert isinstance(holder.servable.deltas, VersionDeltas)
        return holder.servable.deltas

    def look(self) -> bool:
        """Applies deltas until none is left; returns False if five attempts were not enough."""
        for _ in range(5):
            (holder,) = self.registry.holders()
            if self.deltas.catch_up(holder, self.registry.replace):
                return True
        return False

    def drop(self, sequence: int, table: str, ids: Sequence[int], rows: Sequence[Sequence[float]]) -> None:
        """Writes a delta file of these rows into the folder of the served version."""
        drop(self.version, sequence, delta_bytes(self.version, sequence, table, ids, rows))

    def rows(self, table: str, *ids: int) -> list[list[float]]:
        """Reads rows of a table through the engine."""
        found: list[list[float]] = self.engine.table_rows(ModelRef("toy"), table, np.array(ids)).rows.tolist()
        return found


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Served]:
    """Returns a function that serves a toy version; a second call is like a restart of the server."""

    def start(*, journal: bool = False, dtype: str = "float32") -> Served:
        if not (tmp_path / "1").exists():
            write_toy_model(tmp_path / "1", dtype=dtype)
        return Served(tmp_path / "1", tmp_path / "journal" if journal else None)

    return start
