"""Tests of the files of hot rows, and of the rows that a load reads from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from service.engine.counts import FeatureCounts, FeatureIds, SampledRows
from service.engine.servable import LoadedServable, NativeServable, Servable
from service.loading.kept_files import HotRowsFiles
from service.loading.loader import ServableLoader
from service.native.native_servable import compile_native
from service.tables.residency import Residency
from service.types import TableCounts
from tests.toy_model import write_toy_model


class Sampling:
    """A native servable that has sampled table `tag`. Concurrency: any thread."""

    num_holders = 0

    def table_counts(self) -> dict[str, TableCounts]:
        return {"tag": TableCounts(oov_keys=7)}

    def feature_counts(self) -> FeatureCounts:
        return {"tag": {"tags": FeatureIds(100, 3, 1)}}

    def hot_rows(self, table: str, most: int) -> SampledRows | None:
        return SampledRows(10, 160, 3, 0, ((1, 96), (0, 48), (3, 16))[:most]) if table == "tag" else None


def sampled(tmp_path: Path, name: str = "toy", version: int = 1) -> Servable:
    loader = ServableLoader(frozenset({"serve"}), "off", 1, compile_native)
    servable = loader(name, version, write_toy_model(tmp_path / "model"))
    return replace(servable, native=cast(NativeServable, Sampling()))


def test_traffic_has_keys_shares_and_exact_counts(tmp_path: Path) -> None:
    traffic = sampled(tmp_path).traffic("tag", 2)
    assert traffic is not None
    assert [tuple(row) for row in traffic.rows] == [(1, "red", "red", 96, 0.6), (0, None, None, 48, 0.3)]
    assert (traffic.lookups, traffic.sampled, traffic.distinct, traffic.oov_keys) == (160, 10, 3, 7)
    assert traffic.features["tags"] == FeatureIds(100, 3, 1)
    assert (traffic.top_share(1), traffic.top_share(100)) == (0.6, pytest.approx(0.9))
    assert sampled(tmp_path / "2").traffic("user", 2) is None


def test_a_file_has_the_rows_of_a_version_and_a_load_reads_them(tmp_path: Path) -> None:
    servable = sampled(tmp_path, "a/b", 3)
    files = HotRowsFiles(str(tmp_path / "hot"), lambda: [LoadedServable(servable, 0)])
    files.write()
    lines = (tmp_path / "hot" / "a%2Fb" / "3.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"table": "tag", "id": 1, "key": "red", "lookups": 96} and len(lines) == 3
    assert {table: ids.tolist() for table, ids in files.read("a/b", 3).items()} == {"tag": [1, 0, 3]}
    # A version without a file of hot rows reads the file of the next older version; files of newer versions are
    # ignored.
    assert files.read("a/b", 12).keys() == {"tag"} and not files.read("a/b", 2) and not files.read("b", 3)
    read: list[Any] = []

    class Watched(Residency):
        def apply(self, artifact: Path, tables: Any, hot: Any = (), **more: Any) -> None:
            super().apply(artifact, tables, hot, **more)
            read.append(hot)

    loader = ServableLoader(frozenset({"serve"}), "off", 1, compile_native, residency=Watched(), hot_rows=files.read)
    loader("a/b", 4, tmp_path / "model").close()
    assert [ids.tolist() for ids in read[0].values()] == [[1, 0, 3]]


def test_without_files_an_older_version_that_answers_names_the_hot_rows(tmp_path: Path) -> None:
    available = [LoadedServable(sampled(tmp_path / str(version), "m", version), 0) for version in (2, 3)]
    files = HotRowsFiles("", lambda: available)
    for version in (3, 4):
        found = files.newest("m", version)
        assert {table: ids.tolist() for table, ids in found.items()} == {"tag": [1, 0, 3]}
    assert files.newest("m", 1) == files.newest("n", 3) == files.read("m", 3) == {}


def test_a_damaged_file_is_logged_and_reads_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = HotRowsFiles(str(tmp_path), list)
    for number, text in enumerate(("{", "[]", '{"table": "t"}', '{"table": "t", "id": 1e400}', "\xff")):
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        (folder / "1.jsonl").write_bytes(text.encode("latin-1"))
        assert files.read(f"m{number}", 1) == {}
    assert len([one for one in caplog.records if one.message == "hot rows can not be read"]) == 5


def test_a_folder_that_can_not_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hot").write_text("a file")
    servable = sampled(tmp_path)
    HotRowsFiles(str(tmp_path / "hot"), lambda: [LoadedServable(servable, 0)]).write()
    assert [one.message for one in caplog.records] == ["hot rows are not written"]
