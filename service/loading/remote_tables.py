"""Opens the remote tables of versions, follows changes of their rows, and checks their blocks and clusters."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import Manifest, TableEntry
from service.artifact.stored_tables import table_info
from service.errors import ArtifactError, TableUnreachable, did_you_mean
from service.remote.address import StoreAddress, remote_tables
from service.remote.core_clusters import Clusters, RemoteState, Subject
from service.remote.layout import TableLayout
from service.tables.remote_table import RemoteTable
from service.tables.residency import hottest_rows
from service.types import Array
from service.versions.model_config import ModelConfig
from service.versions.servable import Servable
from service.versions.threads import repeat

if TYPE_CHECKING:
    from service.remote.changes import TableChanges
    from service.remote.replicas import Replicas
    from service.remote.scrub import Scrub
    from service.remote.topology import Primaries, Topology


class RemoteNames:
    """The tables that --remote_tables and the list of models make remote, with addresses. Concurrency: any thread.

    Args:
      flag: addresses by table, or by model/table, as --remote_tables has them.
    """

    def __init__(self, flag: Mapping[str, StoreAddress]) -> None:
        self._flag = flag
        self._changing = threading.Lock()
        # Model -> remote table -> address of its cluster, as the list of models gives them.
        self._listed: Mapping[str, Mapping[str, StoreAddress]] = {}
        # Model -> names of all tables of its version that was opened last.
        self._tables: dict[str, frozenset[str]] = {}

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        listed = {config.name: remote_tables(";".join(config.remote_tables)) for config in configs}
        with self._changing:
            self._listed = listed
            self._tables = {model: tables for model, tables in self._tables.items() if model in listed}

    def addresses_of(self, model: str, tables: Collection[str]) -> dict[str, StoreAddress]:
        """Returns the addresses of a version's remote tables: from the list of models, else from --remote_tables.

        Raises:
          ArtifactError: a table is named that the model does not have, or that no model has.
        """
        with self._changing:
            self._tables[model] = frozenset(tables)
            listed, seen = dict(self._listed), dict(self._tables)
        own = listed.setdefault(model, {})
        for name in own:
            if name not in tables:
                raise ArtifactError(_unknown(f"remote_tables of model {model!r}", name, f"model {model!r}", tables))
        for name in self._flag:
            self._check_flag(name, listed, seen)
        flag = self._flag
        found = {table: own.get(table) or flag.get(f"{model}/{table}") or flag.get(table) for table in tables}
        return {table: address for table, address in found.items() if address is not None}

    def _check_flag(self, name: str, models: Collection[str], seen: Mapping[str, Collection[str]]) -> None:
        """Raises ArtifactError if no table has a name of --remote_tables; a model that was not opened yet may still
        have the table.
        """
        if any(name in (table, f"{model}/{table}") for model, tables in seen.items() for table in tables):
            return
        for model, tables in seen.items():
            table = name.removeprefix(f"{model}/")
            if table != name:
                raise ArtifactError(_unknown("--remote_tables", table, f"model {model!r}", tables))
        if seen.keys() >= set(models):
            everywhere = {table for tables in seen.values() for table in tables}
            raise ArtifactError(_unknown("--remote_tables", name, "no model", everywhere))


def unserved_models(flag: Mapping[str, StoreAddress], models: Collection[str]) -> str:
    for name in flag:
        model, separator, _ = name.partition("/")
        if separator and not any(name.startswith(f"{each}/") for each in models):
            listed = ", ".join(sorted(models)) or "none"
            near = did_you_mean(model, models)
            return f"--remote_tables names model {model!r}, which is not served{near}; served: {listed}"
    return ""


def _unknown(source: str, table: str, owner: str, tables: Collection[str]) -> str:
    lacks = "has" if owner == "no model" else "does not have"
    listed = ", ".join(sorted(tables)) or "none"
    return f"{source} names table {table!r}, which {owner} {lacks}{did_you_mean(table, tables)}; tables: {listed}"


logger = logging.getLogger(__name__)

_STEP_S = 1.0
# A finding that changes is logged at most once in this many seconds for each table.
_TELL_S = 60.0


class RemoteScrubbing:
    """The scrubs of the remote tables of one server. Concurrency: any thread.

    Args:
      is_loaded: says whether a table's version is loaded. core: counts the reads of the native core.
      on_change: called when a table can answer no more, or can answer again.
    """

    def __init__(self, is_loaded: Callable[[Subject], bool], core: Clusters, on_change: Callable[[], None]) -> None:
        self._is_loaded = is_loaded
        self._core = core
        self._on_change = on_change
        self._scrubs: dict[Subject, tuple[StoreAddress, Scrub]] = {}
        # Table -> when its problem was logged last, and the problem then.
        self._told: dict[Subject, tuple[float, str]] = {}
        self._failing: frozenset[Subject] = frozenset()

    def add(self, subject: Subject, address: StoreAddress, scrub: Scrub) -> None:
        self._scrubs[subject] = address, scrub

    def watch(self, stop: threading.Event) -> None:
        repeat(self.step, stop, _STEP_S, "remote-scrub")

    def step(self) -> None:
        """Compares some blocks of each table; logs a table whose rows are lost, or are whole again."""
        for subject, (address, scrub) in list(self._scrubs.items()):
            if not self._is_loaded(subject):
                self._scrubs.pop(subject, None)
                self._told.pop(subject, None)
                continue
            try:
                suspects, reads, errors = self._core.lost(subject)
                scrub.step(suspects, reads, errors)
            except Exception:
                # One thread compares all tables, so an error at one table must not end the thread.
                logger.exception("a remote table can not be compared", extra=_named(subject, address))
            self._tell(subject, address, scrub.problem)
        failing = frozenset(subject for subject, (_, scrub) in list(self._scrubs.items()) if not scrub.can_answer)
        if failing != self._failing:
            self._failing = failing
            self._on_change()

    def _tell(self, subject: Subject, address: StoreAddress, problem: str) -> None:
        told_s, told = self._told.get(subject, (float("-inf"), ""))
        now_s = time.monotonic()
        if problem == told or (problem and told and now_s < told_s + _TELL_S):
            return
        self._told[subject] = now_s, problem
        if problem:
            logger.warning("rows of a remote table are lost", extra=_named(subject, address) | {"reason": problem})
        else:
            logger.info("rows of a remote table are whole again", extra=_named(subject, address))

    def problem(self, model: str) -> str:
        for (name, version, table), (address, scrub) in list(self._scrubs.items()):
            if name == model and address.on_unavailable == "error" and not scrub.can_answer:
                return f"rows of table {table!r} of version {version} are lost: {scrub.problem}"
        return ""

    def of(self, address: StoreAddress, refusals: Mapping[Subject, str]) -> list[dict[str, Any]]:
        return [
            {"model": model, "version": version, "table": table}
            | scrub.status()
            | {"refusal": refusals.get((model, version, table), "")}
            for (model, version, table), (its, scrub) in sorted(self._scrubs.items(), key=lambda item: item[0])
            if its == address
        ]

    def counts(self) -> Mapping[Subject, tuple[int, Mapping[str, int]]]:
        return {subject: (scrub.num_checked, scrub.counts) for subject, (_, scrub) in list(self._scrubs.items())}


def _named(subject: Subject, address: StoreAddress) -> dict[str, Any]:
    model, version, table = subject
    return {"model": model, "version": version, "table": table, "cluster": str(address)}


# Seconds that the load of a version waits for a cluster, seconds between two checks whether a cluster answers, seconds
# between two checks for rows that other servers changed, and seconds between two checks whether replicas are in sync.
_OPEN_S = 10.0
_LOOK_S = 1.0
_FOLLOW_S = 0.2
_COMPARE_S = 0.3
# Moved hash slots of a cluster are logged at most once in this many seconds: a large reshard lasts for hours.
_MOVED_S = 5.0


class RemoteTables:
    """The remote tables of one server, with the state of their clusters. Concurrency: any thread.

    Args:
      addresses: by table, or by model/table, as --remote_tables has them.
      on_change: called when a cluster is reached again, or is not any more.
    """

    def __init__(
        self,
        addresses: Mapping[str, StoreAddress],
        on_change: Callable[[], None],
        core: Clusters,
    ) -> None:
        self._core = core
        self._names = RemoteNames(addresses)
        self._on_change = on_change
        self._changing = threading.Lock()
        self._looking = threading.Lock()
        self._comparing = threading.Lock()
        self._stop: threading.Event | None = None
        self._is_watched = False
        self._topologies: dict[StoreAddress, Topology] = {}
        self._looked_at: frozenset[StoreAddress] = frozenset()
        self._problems: dict[StoreAddress, str] = {}
        # Cluster -> when its moved hash slots were logged last.
        self._moved_s: dict[StoreAddress, float] = {}
        # Cluster -> hash of the password that its file had last.
        self._passwords: dict[StoreAddress, int] = {}
        # The references are weak, so that the tables and the TableChanges of an unloaded version are freed with the
        # version.
        self._tables: weakref.WeakValueDictionary[Subject, RemoteTable] = weakref.WeakValueDictionary()
        self._changes: weakref.WeakSet[TableChanges] = weakref.WeakSet()
        self._scrubbing = RemoteScrubbing(self._tables.__contains__, core, on_change)
        self._primaries: dict[StoreAddress, Primaries] = {}
        self._replicas: dict[StoreAddress, Replicas] = {}

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        self._names.configure(configs)

    def open(self, model: str, version: int, artifact: Path, manifest: Manifest | None) -> dict[str, RemoteTable]:
        """Opens the remote tables of a version; returns them by name. A version without a manifest has none.

        Raises:
          TableUnreachable: a cluster does not hold a table of this version, or can not be reached.
          ArtifactError: a table is named remote that does not exist.
        """
        entries = {} if manifest is None else manifest.tables
        addresses = self._names.addresses_of(model, entries)
        if manifest is None or not addresses:
            return {}
        found = {
            name: self._open(model, version, artifact, manifest, name, entries[name], address)
            for name, address in addresses.items()
        }
        if not self._looked_at >= set(addresses.values()):
            # Clusters that no loaded version uses yet are checked before the version is AVAILABLE. If a cluster lacks
            # nodes for some hash slots, the server is not ready from the version's first moment.
            self.look()
            self.compare()
        self._start()
        return found

    def _open(
        self,
        model: str,
        version: int,
        artifact: Path,
        manifest: Manifest,
        name: str,
        entry: TableEntry,
        address: StoreAddress,
    ) -> RemoteTable:
        # service.remote is imported only if a table is remote, because it needs redis-py, an optional extra.
        try:
            from service.remote.changes import TableChanges
            from service.remote.layout import BlockFile
            from service.remote.scrub import Scrub
            from service.remote.topology import Primaries, Refused, Unreachable, check_records
        except ModuleNotFoundError as error:
            raise ArtifactError(f"table {name!r} is remote, which needs the extra [remote]: {error}") from error

        if address.on_unavailable == "stale" and not self._core.holds_rows:
            raise ArtifactError(
                f"table {name!r} has on_unavailable=stale, and no cache can have its rows: give --remote_cache_bytes"
            )
        end_s = time.monotonic() + _OPEN_S
        subject, fingerprint = (model, version, name), fingerprint_of(artifact)
        layout = TableLayout.of(model, name, fingerprint, entry)
        topology = self._topology(address)
        check_records(layout, topology, end_s)
        with self._changing:
            primaries = self._primaries.setdefault(address, Primaries(address, topology))
        changes = TableChanges(layout, primaries, entry.dtype)
        try:
            changes.begin(end_s)
        except (Unreachable, Refused) as error:
            raise TableUnreachable(f"changes of table {name!r} can not be followed: {error}") from error
        default_rows = _default_rows(manifest, name) if address.on_unavailable == "default_row" else ()
        try:
            core = self._core.open(subject, layout, address, default_rows)
        except OSError as error:
            raise TableUnreachable(f"default rows of table {name!r} can not be read: {error}") from error
        changes.listeners.append(partial(self._core.forget, subject))
        changes.on_heard = partial(self._core.heard, subject)
        table = RemoteTable(table_info(manifest, name, layout.nbytes), layout, address, default_rows, core, changes)
        with self._changing:
            self._tables[subject] = table
            self._changes.add(changes)
        scrub = Scrub(layout, primaries, BlockFile(layout, artifact, entry))
        self._scrubbing.add(subject, address, scrub)
        logger.info("table is remote", extra=_named(subject, address))
        return table

    def _topology(self, address: StoreAddress) -> Topology:
        from service.remote.topology import Topology

        with self._changing:
            return self._topologies.setdefault(address, Topology(address))

    def state(self) -> RemoteState:
        with self._changing:
            topologies = dict(self._topologies)
        reached = {str(address): address not in self._problems for address in topologies}
        silent = {
            str(address): sum(not node.answers for node in topology.status())
            for address, topology in topologies.items()
        }
        refused = {subject: table.changes.refused for subject, table in self._opened().items()}
        return RemoteState(reached, silent, self._scrubbing.counts(), refused)

    def _opened(self) -> dict[Subject, RemoteTable]:
        with self._changing:
            return dict(self._tables)

    def clusters(self) -> list[dict[str, object]]:
        with self._changing:
            topologies = dict(self._topologies)
        refusals = {subject: table.changes.refusal for subject, table in self._opened().items()}
        return [
            {
                "cluster": str(address),
                "problem": self._problems.get(address, ""),
                "tables": self._scrubbing.of(address, refusals),
                "nodes": [node._asdict() for node in topology.status()],
            }
            for address, topology in topologies.items()
        ]

    def problem(self, model: str) -> str:
        """Returns one line on a table of the model that can not be reached, or lost rows; "" if there is none.

        Only tables with on_unavailable=error count.
        """
        if not self._problems:
            return self._scrubbing.problem(model)
        for (name, version, table), opened in self._opened().items():
            why = self._problems.get(opened.address, "")
            if name == model and why and opened.address.on_unavailable == "error":
                return f"table {table!r} of version {version} can not be reached: {why}"
        return self._scrubbing.problem(model)

    def look(self) -> None:
        """Checks each cluster and all its nodes; logs each cluster that can not be reached, or can be reached again."""
        with self._looking:
            with self._changing:
                topologies = dict(self._topologies)
            problems = {address: why for address, topology in topologies.items() if (why := topology.look())}
            self._looked_at = frozenset(topologies)
            for address, topology in topologies.items():
                self._tell_moved(address, topology)
                self._tell_password(address)
            if problems == self._problems:
                return
            for address, why in problems.items():
                if address not in self._problems:
                    logger.warning("cluster can not be reached", extra={"cluster": str(address), "reason": why})
            for address in self._problems:
                if address not in problems:
                    logger.info("cluster is reached again", extra={"cluster": str(address)})
            self._problems = problems
        self._on_change()

    def _tell_moved(self, address: StoreAddress, topology: Topology) -> None:
        now_s = time.monotonic()
        if now_s >= self._moved_s.get(address, float("-inf")) + _MOVED_S and (moved := topology.moved()):
            self._moved_s[address] = now_s
            logger.info("hash slots have another primary", extra={"cluster": str(address), "moved": moved})

    def _tell_password(self, address: StoreAddress) -> None:
        try:
            found = hash(address.password)
        except OSError:
            # The file can not be read; if a connection needs it, the cluster can not be reached.
            return
        if self._passwords.setdefault(address, found) != found:
            self._passwords[address] = found
            logger.info("new connections use another password", extra={"cluster": str(address)})

    def watch(self, stop: threading.Event) -> None:
        """Checks clusters and follows changed rows, in threads, from the first remote table on, until stop is set."""
        self._stop = stop
        if self._topologies:
            self._start()

    def _start(self) -> None:
        stop = self._stop
        with self._changing:
            if stop is None or self._is_watched:
                return
            self._is_watched = True

        def look() -> None:
            self.look()
            self._core.refresh()

        took_s = 0.0

        def compare() -> None:
            nonlocal took_s
            begin_s = time.monotonic()
            self.compare()
            took_s = time.monotonic() - begin_s

        self._scrubbing.watch(stop)
        repeat(look, stop, _LOOK_S, "remote-tables")
        repeat(compare, stop, lambda: max(_COMPARE_S - took_s, _COMPARE_S / 3), "remote-replicas")
        repeat(self.follow, stop, _FOLLOW_S, "remote-changes")

    def compare(self) -> None:
        from service.remote.replicas import Replicas

        with self._comparing:
            with self._changing:
                topologies = dict(self._topologies)
            for address, topology in topologies.items():
                if address not in self._replicas:
                    self._replicas[address] = Replicas(topology, self._core.set_in_sync)
                try:
                    self._compare(self._replicas[address])
                except Exception:
                    # An error at one cluster must not fail the load of a version, nor keep the replicas of other
                    # clusters from being compared.
                    logger.exception("replicas of a cluster can not be compared", extra={"cluster": str(address)})

    def _compare(self, replicas: Replicas) -> None:
        found = replicas.compare()
        self._core.set_in_sync(found.until_s)
        if found.is_map_old:
            self._core.refresh()

    def follow(self) -> None:
        """Reads which rows of remote tables other servers changed, and writes this server's waiting changes."""
        with self._changing:
            followed = list(self._changes)
        for changes in followed:
            try:
                changes.follow()
            except Exception:
                # One thread follows the changes of all remote tables, so an error of one table must not end the thread.
                logger.exception("changes of a remote table can not be followed")


def _default_rows(manifest: Manifest, table: str) -> tuple[int, ...]:
    features = [name for name, feature in manifest.features.items() if feature.table == table]
    lookups = [one for signature in manifest.signatures.values() for one in signature.features.items()]
    # Row 0 is always one: RemoteTable.stored_rows(), which reads for no feature, returns it in place of an unreadable
    # row.
    size = manifest.tables[table].vocabulary_size
    return tuple(
        sorted({0, *(one.default_row for name, one in lookups if name in features and one.default_row < size)})
    )


@dataclass(frozen=True, slots=True)
class RemoteFilling:
    """The filler of the cache of remote tables' rows, for versions that are being loaded. Concurrency: any thread.

    seconds: longest time for one version; rows that are not read by then are left out.
    hot_rows: returns table -> its hot rows, [n] int64, the hottest first, of a model and version.
    """

    cache: Clusters
    seconds: float
    hot_rows: Callable[[str, int], Mapping[str, Array]]

    def __call__(self, servable: Servable, path: Path) -> None:
        """Reads rows of each remote table of a version into the native core's cache, the hottest first.

        Args:
          path: the version's folder. For tables that hot_rows lacks, the statistics in this folder name the hot rows.
        """
        tables = {name: table for name, table in servable.tables.items() if isinstance(table, RemoteTable)}
        if not self.cache.holds_rows or not tables or self.seconds <= 0:
            return
        end_s = time.monotonic() + self.seconds
        known = {**dict(hottest_rows(path)), **self.hot_rows(servable.name, servable.version)}
        for name, table in tables.items():
            begin_s = time.monotonic()
            if (ids := known.get(name)) is None or begin_s >= end_s:
                continue
            inside = ids[(ids >= 0) & (ids < table.info.vocabulary_size)]
            count = self.cache.fill(table.layout, servable.version, inside, end_s - begin_s)
            names = {"model": servable.name, "version": servable.version, "table": name}
            seconds = round(time.monotonic() - begin_s, 3)
            logger.info("hot rows are cached", extra={**names, "rows": count, "of": inside.size, "seconds": seconds})
