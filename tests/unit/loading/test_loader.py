"""Loads a version folder as a servable, with TensorFlow only if it is needed, or refuses it with a reason."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import service.loading.graph_opening
import service.loading.loader
from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import journal_path
from service.deltas.rules import DeltaRules
from service.engine.servable import Servable
from service.errors import ArtifactError
from service.graph.savedmodel import LazyBackend
from service.loading.loader import ServableLoader
from tests.toy_model import INDEX, MANIFEST, SHARD, rewrite_manifest, saved_model, toy_signatures, write_toy_model

SERVE = frozenset({"serve"})


def compile_none(servable: Servable, *arguments: object, **options: object) -> Servable:
    """Compiles nothing: these tests look at what is opened."""
    return replace(servable, not_run=dict.fromkeys(servable.backends, "it is not compiled"))


TPU = frozenset({"serve", "tpu"})


class FakeGraph:
    """A stand-in for a graph that TensorFlow runs."""

    closed = 0

    def close(self) -> None:
        """Counts."""
        self.closed += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, frozenset[str], int]]:
    """Replaces TensorFlow by a stub; returns the list of the (artifact, tags, threads) of each graph that is opened."""
    calls: list[tuple[Path, frozenset[str], int]] = []

    def open_graph(
        path: Path,
        tags: frozenset[str],
        *,
        threads: int,
        inter_op_threads: int | None,
    ) -> FakeGraph:
        assert inter_op_threads is None
        calls.append((path, tags, threads))
        return FakeGraph()

    monkeypatch.setattr(service.loading.graph_opening, "open_savedmodel", open_graph)
    monkeypatch.setattr(service.loading.graph_opening, "open_towers", lambda *arguments, **options: None)
    monkeypatch.setattr(service.loading.loader, "_native_graphs", lambda *arguments: {})
    monkeypatch.setattr(service.loading.loader.importlib.util, "find_spec", lambda name: object())
    return calls


def load(path: Path, graph_signatures: str = "off", tags: frozenset[str] = SERVE) -> Servable:
    """Loads a folder as version 1 of model "toy"."""
    return ServableLoader(tags, graph_signatures, 3, compile_none)("toy", 1, path)


def test_without_tensorflow_lookups_run_and_the_rest_is_listed_only(toy_model: Path) -> None:
    servable = load(toy_model / "1")
    assert sorted(servable.backends) == ["lookup", "lookup_tpu_tensor_core"]
    assert sorted(servable.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]
    assert sorted(servable.tables) == ["tag", "user"]


def test_a_missing_tensorflow_is_the_same_as_off(
    toy_model: Path, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.loading.loader.importlib.util, "find_spec", lambda name: None)
    assert "serving_default" not in load(toy_model / "1", "auto").backends
    assert opened == []


def test_auto_opens_the_graph_with_the_version(toy_model: Path, opened: list[object]) -> None:
    servable = load(toy_model / "1", "auto")
    assert opened == [(toy_model / "1", SERVE, 3)]
    assert isinstance(servable.backends["serving_default"], FakeGraph)
    assert not isinstance(servable.backends["lookup"], FakeGraph)


def with_a_fault(folder: Path) -> Path:
    """Writes a version whose signature `lookup` has no output that its manifest names."""

    def edit(data: dict[str, Any]) -> None:
        data["signatures"]["lookup"]["features"]["user"]["output"] = "u"

    return write_toy_model(folder, edit_manifest=edit)


FAULT = "signature 'lookup' has no output 'u', which its manifest names"


def test_a_signature_with_a_fault_is_left_to_its_graph(
    tmp_path: Path, opened: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    servable = load(with_a_fault(tmp_path / "1"), "auto")
    assert isinstance(servable.backends["lookup"], FakeGraph)
    assert not isinstance(servable.backends["lookup_tpu_tensor_core"], FakeGraph)
    assert servable.signatures["lookup"].kind == "predict"
    assert servable.signature_faults == {"lookup": FAULT}
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    told = {name: getattr(record, name) for name in ("model", "version", "signature", "reason")}
    assert told == {"model": "toy", "version": 1, "signature": "lookup", "reason": FAULT}


def test_without_tensorflow_only_a_signature_with_a_fault_is_not_answered(tmp_path: Path) -> None:
    servable = load(with_a_fault(tmp_path / "1"))
    assert sorted(servable.backends) == ["lookup_tpu_tensor_core"]
    assert servable.signature_faults == {"lookup": FAULT}


def test_a_graph_that_only_a_fault_needs_takes_nothing_down(
    tmp_path: Path, opened: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> FakeGraph:
        raise ArtifactError("no graph")

    artifact = with_a_fault(tmp_path / "1")
    monkeypatch.setattr(service.loading.graph_opening, "open_savedmodel", refuse)
    with pytest.raises(ArtifactError, match="no graph"):
        load(artifact, "auto")
    signatures = toy_signatures()
    del signatures["serving_default"]
    (artifact / "saved_model.pb").write_bytes(saved_model(signatures))
    rewrite_manifest(artifact, lambda data: [data.pop("files"), data["signatures"].pop("serving_default")])
    assert sorted(load(artifact, "auto").backends) == ["lookup_tpu_tensor_core"]


def test_lazy_opens_it_when_it_is_needed(toy_model: Path, opened: list[object]) -> None:
    backend = load(toy_model / "1", "lazy").backends["serving_default"]
    assert opened == []
    assert isinstance(backend, LazyBackend)
    for _ in range(2):
        assert isinstance(backend.opened(), FakeGraph)
    assert opened == [(toy_model / "1", SERVE, 3)]


@pytest.mark.parametrize("graph_signatures", ["off", "auto"])
def test_a_savedmodel_without_manifest_runs_in_tensorflow_or_not_at_all(
    tmp_path: Path, opened: list[object], graph_signatures: str
) -> None:
    artifact = write_toy_model(tmp_path / "1")
    (artifact / MANIFEST).unlink()
    if graph_signatures == "off":
        with pytest.raises(ArtifactError, match=r"has no lookup manifest, so all of it needs TensorFlow"):
            load(artifact, "off")
        return
    servable = load(artifact, graph_signatures)
    assert len({id(backend) for backend in servable.backends.values()}) == 1
    assert sorted(servable.backends) == sorted(servable.signatures)
    assert servable.tables == {}
    assert {spec.kind for spec in servable.signatures.values()} == {"predict"}


def test_a_model_of_lookups_only_never_opens_a_graph(tmp_path: Path, opened: list[object]) -> None:
    from tests.toy_model import saved_model, toy_signatures

    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data["signatures"].pop("serving_default"))
    signatures = toy_signatures()
    del signatures["serving_default"]
    data = saved_model(signatures)
    (artifact / "saved_model.pb").write_bytes(data)
    rewrite_manifest(artifact, lambda manifest: manifest["files"].update({"saved_model.pb": len(data)}))
    load(artifact, "auto")
    assert opened == []


def test_the_meta_graph_is_chosen_by_its_tags(toy_model: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no meta graph tagged \{serve, tpu\}. Tags it has: \{serve\}"):
        load(toy_model / "1", tags=TPU)


def test_lookups_of_another_meta_graph_run_on_the_mapped_tables_too(tmp_path: Path, opened: list[object]) -> None:
    from tests.toy_model import saved_model, toy_signatures

    artifact = write_toy_model(tmp_path / "1")
    # The second MetaGraph has one of the manifest's lookups, and a predict signature that the first one lacks.
    signatures = {"lookup": toy_signatures()["lookup"], "on_tpu": ({"x": (1, (-1,))}, {"y": (1, (-1,))})}
    # Concatenated protobuf messages merge, so the file then has the MetaGraphs of both messages.
    data = (artifact / "saved_model.pb").read_bytes() + saved_model(signatures, ("serve", "tpu"))
    (artifact / "saved_model.pb").write_bytes(data)
    rewrite_manifest(artifact, lambda manifest: manifest["files"].update({"saved_model.pb": len(data)}))
    servable = load(artifact, "auto", TPU)
    assert sorted(servable.backends) == sorted(servable.signatures) == ["lookup", "on_tpu"]
    assert not isinstance(servable.backends["lookup"], FakeGraph) and servable.signatures["lookup"].kind == "lookup"
    assert isinstance(servable.backends["on_tpu"], FakeGraph)
    assert opened == [(artifact, TPU, 3)]
    # A file may have MetaGraphs for {serve} and {serve,tpu}; a server without other settings reads {serve}.
    assert sorted(load(artifact).signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]


@pytest.mark.parametrize("name", ["saved_model.pb", INDEX, SHARD, "assets/tag.txt"])
def test_every_missing_file_is_named(tmp_path: Path, name: str | Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    (artifact / name).unlink()
    with pytest.raises(ArtifactError, match=str(name)):
        load(artifact)


@pytest.mark.parametrize("name", ["saved_model.pb", INDEX, SHARD, MANIFEST, "assets/tag.txt"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str | Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    data = (artifact / name).read_bytes()
    for length in range(0, len(data), max(1, len(data) // 50)):
        (artifact / name).write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            load(artifact)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot read .*saved_model\.pb"):
        load(tmp_path)


def shown(path: Path, graph_signatures: str = "auto", **more: Any) -> tuple[Servable, list[Servable]]:
    """Loads a folder as version 1; returns the version, and the servables that were shown before it was loaded."""
    early: list[Servable] = []
    loader = ServableLoader(SERVE, graph_signatures, 3, compile_none, show_lookups=early.append, **more)
    return loader("toy", 1, path), early


def test_lookups_are_shown_before_the_graph_is_opened(toy_model: Path, opened: list[object]) -> None:
    seen: list[object] = []

    def show(early: Servable) -> None:
        seen.append(early)
        assert opened == []
        assert (early.is_loading, sorted(early.backends)) == (True, ["lookup", "lookup_tpu_tensor_core"])
        assert sorted(early.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]

    servable = ServableLoader(SERVE, "auto", 3, compile_none, show_lookups=show)("toy", 1, toy_model / "1")
    assert len(seen) == len(opened) == 1
    assert (servable.is_loading, sorted(servable.backends)) == (False, sorted(servable.signatures))


@pytest.mark.parametrize("graph_signatures", ["off", "lazy"])
def test_nothing_is_shown_early_where_no_graph_is_opened(
    toy_model: Path, opened: list[object], graph_signatures: str
) -> None:
    servable, early = shown(toy_model / "1", graph_signatures)
    assert (early, servable.is_loading) == ([], False)


def test_lookups_that_deltas_change_are_shown_with_these_only(
    tmp_path: Path, toy_model: Path, opened: list[object]
) -> None:
    folder = Path(shutil.copytree(toy_model / "1", tmp_path / "1"))
    rules = DeltaRules(tmp_path / "journal", 10, 1 << 20, 1 << 20, lambda: None)
    assert len(shown(folder, deltas=rules)[1]) == 1
    journal = journal_path(tmp_path / "journal", "toy", 1, fingerprint_of(folder))
    journal.parent.mkdir(parents=True)
    journal.touch()
    assert shown(folder, deltas=rules)[1] == []
    journal.unlink()
    (folder / "deltas").mkdir()
    assert shown(folder, deltas=rules)[1] == []
    # The loader can not look for the journal, because the journal's folder is a file: it assumes that there is one.
    (folder / "deltas").rmdir()
    journal.parent.rmdir()
    journal.parent.touch()
    assert shown(folder, deltas=rules)[1] == []
