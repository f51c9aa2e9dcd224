"""Loads versions: rules, memory, batching, and tables that are remote or built again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import service.loading.graph_opening
import service.loading.loader
from model_export.compaction.compact import compact
from model_export.compaction.deltas import write_delta
from service.artifact.delta_file import fingerprint_of
from service.artifact.delta_journal import journal_path
from service.configuration.control_groups import available_bytes, memory_limit_bytes
from service.configuration.settings_reading import read_settings
from service.control.engine import Engine
from service.core.native_servable import compile_native
from service.deltas.rules import DeltaRules
from service.deltas.version_deltas import VersionDeltas
from service.errors import ArtifactError, DeltaRefused, InvalidRequest
from service.graph.lazy import LazyBackend
from service.loading.loader import DEFAULT, PER_MODEL_FILE, BatchingRules, ServableLoader, read_rules, residency_of
from service.loading.remote_tables import RemoteNames, unserved_models
from service.remote.address import remote_tables
from service.tables import residency
from service.tables.residency import Residency
from service.types import Array, GraphThreads, ModelRef
from service.versions.deltas import Upsert
from service.versions.model_config import ModelConfig
from service.versions.registry import Registry
from service.versions.servable import Servable
from service.wire.config_protos import BatchingParameters
from tests.conftest import RecordingObserver
from tests.deltas import delta_bytes, drop
from tests.tower_model import TAGS, USERS
from tests.toy_model import INDEX, MANIFEST, SHARD, rewrite_manifest, saved_model, toy_signatures, write_toy_model
from tests.unit.deltas.conftest import Served

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

    def open_graph(path: Path, tags: frozenset[str], threads: GraphThreads) -> FakeGraph:
        calls.append((path, tags, threads.all))
        return FakeGraph()

    monkeypatch.setattr(service.loading.graph_opening, "open_savedmodel", open_graph)
    monkeypatch.setattr(service.loading.graph_opening, "open_towers", lambda *arguments, **options: None)
    monkeypatch.setattr(service.loading.loader, "_native_graphs", lambda *arguments: {})
    monkeypatch.setattr(service.loading.loader.importlib.util, "find_spec", lambda name: object())
    return calls


def load(path: Path, graph_signatures: str = "off", tags: frozenset[str] = SERVE) -> Servable:
    """Loads a folder as version 1 of model "toy"."""
    return ServableLoader(tags, graph_signatures, compile_none, graph_threads=GraphThreads(3))("toy", 1, path)


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
    loader = ServableLoader(
        SERVE, graph_signatures, compile_none, graph_threads=GraphThreads(3), show_lookups=early.append, **more
    )
    return loader("toy", 1, path), early


def test_lookups_are_shown_before_the_graph_is_opened(toy_model: Path, opened: list[object]) -> None:
    seen: list[object] = []

    def show(early: Servable) -> None:
        seen.append(early)
        assert opened == []
        assert (early.is_loading, sorted(early.backends)) == (True, ["lookup", "lookup_tpu_tensor_core"])
        assert sorted(early.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]

    servable = ServableLoader(SERVE, "auto", compile_none, graph_threads=GraphThreads(3), show_lookups=show)(
        "toy", 1, toy_model / "1"
    )
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
    rules = DeltaRules(tmp_path / "journal", 1 << 20, 1 << 20, lambda: None)
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


def test_every_setting_has_its_effect() -> None:
    flags = ["--warm=tables", "--table_lock=try", "--table_pages=random"]
    assert residency_of(read_settings(["--model_base_path=/m", *flags])) == Residency(
        is_prefaulted=True, lock="try", advice="random"
    )
    assert residency_of(read_settings(["--model_base_path=/m"])) == Residency()
    assert residency_of(read_settings(["--model_base_path=/m", "--warm=hot_rows"])) == Residency(is_warmed=True)
    # --warm=tables reads all pages, so it also asks the kernel for huge pages.
    assert residency_of(read_settings(["--model_base_path=/m", "--warm=tables"])) == Residency(
        is_prefaulted=True, advice="huge"
    )


def test_a_version_whose_tables_must_be_locked_and_can_not_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency.LIBC, "mlock", lambda _address, _nbytes: -1)
    path = write_toy_model(tmp_path / "1")
    loader = ServableLoader(frozenset({"serve"}), "off", compile_native)
    with pytest.raises(ArtifactError, match="can not be locked"):
        replace(loader, residency=Residency(lock="require"))("toy", 1, path)
    # Residency() does not require locked pages, so the version is loaded although mlock() fails.
    loader("toy", 1, path).close()


TOY = ModelRef("toy")
CHANGE = Upsert(np.ones((1, 2), np.float32), ids=np.array([0]))


def rules(journal: Path | None, wake: Callable[[], None]) -> DeltaRules:
    """Returns DeltaRules with small limits."""
    return DeltaRules(journal, 1 << 20, 1 << 20, wake)


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

    version = shutil.copytree(toy_model / "1", tmp_path / "toy" / "1")
    drop(version, 1, delta_bytes(version, 1, "user", [1], [[9, 9]]))
    drop(version, 2, delta_bytes(version, 2, "user", [2], [[8, 8]], flags=1))
    loader = ServableLoader(frozenset({"serve"}), "auto", compile_native, deltas=rules(tmp_path / "journal", look))
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
    loader = ServableLoader(frozenset({"serve"}), "auto", compile_native)
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


def names(flag: str, **models: tuple[str, ...]) -> RemoteNames:
    """Returns the remote names that a flag and the remote_tables of each listed model give."""
    found = RemoteNames(remote_tables(flag))
    found.configure([ModelConfig(name, f"/{name}", remote_tables=own) for name, own in models.items()])
    return found


def test_the_list_goes_before_the_model_and_the_model_before_all_models() -> None:
    found = names("user=valkey://all;m/user=valkey://m;film=valkey://all", m=(), n=("user=valkey://own",))
    addresses = {model: found.addresses_of(model, ["user", "film", "tag"]) for model in ("m", "n")}
    assert {model: {table: str(one) for table, one in of.items()} for model, of in addresses.items()} == {
        "m": {"user": "m:6379", "film": "all:6379"},
        "n": {"user": "own:6379", "film": "all:6379"},
    }


@pytest.mark.parametrize(
    ("flag", "own", "text"),
    [
        (
            "usr=valkey://a",
            (),
            "--remote_tables names table 'usr', which no model has; did you mean user?; tables: film, user",
        ),
        (
            "m/usr=valkey://a",
            (),
            "--remote_tables names table 'usr', which model 'm' does not have; did you mean user?",
        ),
        (
            "",
            ("flim=valkey://a",),
            "remote_tables of model 'm' names table 'flim', which model 'm' does not have; did you",
        ),
    ],
)
def test_a_name_of_no_table_is_an_error_with_a_near_name(flag: str, own: tuple[str, ...], text: str) -> None:
    with pytest.raises(ArtifactError) as told:
        names(flag, m=own).addresses_of("m", ["user", "film"])
    assert told.value.message.startswith(text)


def test_another_model_may_have_the_table_until_all_were_opened() -> None:
    found = names("tag=valkey://a;other=valkey://b", m=(), n=())
    assert found.addresses_of("m", ["user"]) == {}
    with pytest.raises(ArtifactError, match="names table 'other', which no model has; tables: tag, user"):
        found.addresses_of("n", ["tag"])
    assert [*names("tag=valkey://a", m=(), n=()).addresses_of("n", ["tag"])] == ["tag"]


def test_a_model_that_left_the_list_has_no_tables() -> None:
    found = names("tag=valkey://a", m=(), n=())
    found.addresses_of("m", ["tag"])
    found.configure([ModelConfig("n", "/n")])
    with pytest.raises(ArtifactError, match="which no model has"):
        found.addresses_of("n", ["user"])


def test_a_model_that_is_not_served_is_named_with_a_near_one() -> None:
    flag = remote_tables("movielens/user=valkey://a;film=valkey://b")
    assert unserved_models(flag, ["movielens"]) == ""
    assert unserved_models(flag, ["movielenz", "x"]) == (
        "--remote_tables names model 'movielens', which is not served; did you mean movielenz?; served: movielenz, x"
    )


@pytest.mark.parametrize("text", [None, "max_batch_size { value: 2 }"])
def test_per_model_only_what_has_a_file_is_batched_and_by_it_alone(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / PER_MODEL_FILE).write_text(text)
    rules = BatchingRules(BatchingParameters(max_batch_size=1), is_per_model=True)
    assert rules.parameters_of(tmp_path) == (None if text is None else BatchingParameters(max_batch_size=2))


def test_a_file_of_a_model_counts_only_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("not looked at")
    common = BatchingParameters(max_batch_size=1)
    assert BatchingRules(common, is_per_model=False).parameters_of(tmp_path) == common


def test_a_model_whose_file_is_broken_does_not_load(tmp_path: Path) -> None:
    (tmp_path / PER_MODEL_FILE).write_text("allowed_batch_sizes: 2")
    with pytest.raises(ArtifactError, match=r"batching_params.pbtxt: Last entry in allowed_batch_sizes must match"):
        BatchingRules(DEFAULT, is_per_model=True).parameters_of(tmp_path)


def test_the_servers_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("max_batch_size { value: 2 }")
    assert read_rules(str(file), False) == BatchingRules(BatchingParameters(max_batch_size=2), False)
    assert read_rules("", True) == BatchingRules(DEFAULT, True)


@pytest.mark.parametrize(("data", "text"), [(None, "cannot read .*: No such file"), (b"\xff", "not UTF-8")])
def test_a_servers_file_that_can_not_be_used_is_refused(tmp_path: Path, data: bytes | None, text: str) -> None:
    file = tmp_path / "f"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InvalidRequest, match=text):
        read_rules(str(file), False)


V1_STAT = "total_inactive_file 3000\ntotal_active_file 1000\ninactive_file 1\n"
MEMINFO = "MemTotal:       24000 kB\nMemAvailable:   20000 kB\n"
SYSTEM = 20000 * 1024


def system(root: Path, group: str, limits: dict[str, str], meminfo: str = MEMINFO) -> Path:
    """Writes the files of a system under a root folder, and returns the root.

    Args:
      group: content of /proc/self/cgroup; "" for none. limits: the files below /sys/fs/cgroup, without a line's end.
    """
    files = {"proc/meminfo": meminfo, "proc/self/cgroup": group}
    files |= {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in limits.items()}
    for name, text in files.items():
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


V2_STAT = "anon 2000\nfile 5000\ninactive_file 4000\nactive_file 500"
# Version 2 of control groups, in a container: the process sees its own group as the root. Version 1 in a container: the
# path is that of the host, but the folder at the top is the container's own group; no limit is a number larger than
# any memory.
DOCKER = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n"
V2_LIMITS = {"memory.max": "10000", "memory.current": "7000", "memory.stat": V2_STAT}
V1_LIMITS = {"limit_in_bytes": "10000", "usage_in_bytes": "9000", "stat": V1_STAT}
V1_NO_LIMIT = {"limit_in_bytes": "9223372036854771712", "usage_in_bytes": "9000"}
POD = {"main/memory.max": "max", "main/memory.current": "1", "memory.max": "5000", "memory.current": "6000"}


def in_folder(folder: str, limits: dict[str, str]) -> dict[str, str]:
    return {f"{folder}{name}": text for name, text in limits.items()}


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("", {}, SYSTEM),
        ("0::/\n", V2_LIMITS, 10000 - 7000 + 4500),
        # The process's own control group has no limit, but the group above it has one.
        ("0::/pods/one/main\n", in_folder("pods/one/", POD), 0),
        (DOCKER, in_folder("memory/memory.", V1_LIMITS), 10000 - 9000 + 4000),
        ("4:memory:/\n", in_folder("memory/memory.", V1_NO_LIMIT), SYSTEM),
    ],
    ids=["no group", "version 2", "group above", "version 1", "no limit"],
)
def test_the_least_of_all_limits_counts(tmp_path: Path, group: str, limits: dict[str, str], expected: int) -> None:
    assert available_bytes(system(tmp_path, group, limits)) == expected


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 1 kB\nMemAvailable: none\n\n"])
def test_no_number_is_told_as_none(tmp_path: Path, meminfo: str) -> None:
    assert available_bytes(system(tmp_path, "", {}, meminfo)) is None


def test_this_system_says_something() -> None:
    found = available_bytes()
    assert found is None or found > 1 << 20


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("", {}, 24000 * 1024),
        # The lowest limit counts: that of the group itself or of a group above it.
        ("0::/pods/one\n", {"pods/one/memory.max": "max", "pods/memory.max": "5000"}, 5000),
        ("4:memory:/\n", in_folder("memory/memory.", V1_NO_LIMIT), 24000 * 1024),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, group: str, limits: dict[str, str], expected: int) -> None:
    assert memory_limit_bytes(system(tmp_path, group, limits)) == expected
    assert memory_limit_bytes(tmp_path / "nothing") is None
