"""Opens the remote tables of versions, follows changes of their rows, and checks regularly whether their clusters can
be reached.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import Manifest, TableEntry
from service.engine.model_config import ModelConfig
from service.errors import ArtifactError, TableUnreachable
from service.loading.remote_names import RemoteNames
from service.loading.remote_scrubbing import RemoteScrubbing
from service.remote.address import StoreAddress
from service.remote.counts import ReadCounts, RemoteState, Subject
from service.remote.layout import TableLayout
from service.remote.row_cache import RowCache
from service.tables.remote_table import RemoteTable
from service.tables.table import table_info
from service.types import Array

if TYPE_CHECKING:
    from service.remote.changes import Listener, TableChanges
    from service.remote.primaries import Primaries
    from service.remote.replicas import Replicas
    from service.remote.row_reader import RowReader
    from service.remote.topology import Topology

logger = logging.getLogger(__name__)

# Seconds that the load of a version waits for a cluster, seconds between two checks whether a cluster answers, seconds
# between two checks for rows that other servers changed, and seconds between two checks whether replicas are in sync.
_OPEN_S = 10.0
_LOOK_S = 1.0
_FOLLOW_S = 0.2
_COMPARE_S = 0.3


class RemoteTables:
    """The remote tables of one server, with the state of their clusters. Concurrency: any thread.

    Args:
      addresses: by table, or by model/table, as --remote_tables has them.
      on_change: called when a cluster is reached again, or is not any more.
      cache: caches rows of the tables; None where there is no native core.
    """

    def __init__(
        self,
        addresses: Mapping[str, StoreAddress],
        on_change: Callable[[], None],
        cache: RowCache | None = None,
    ) -> None:
        self._cache = cache
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
        # The references are weak, so that the RowReader and the TableChanges of an unloaded version are freed with the
        # version.
        self._readers: weakref.WeakValueDictionary[Subject, RowReader] = weakref.WeakValueDictionary()
        self._changes: weakref.WeakSet[TableChanges] = weakref.WeakSet()
        self._scrubbing = RemoteScrubbing(self._readers.__contains__, cache, on_change)
        self._primaries: dict[StoreAddress, Primaries] = {}
        self._replicas: dict[StoreAddress, Replicas] = {}

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        """Stores the list of models; versions that are loaded later use its addresses of remote tables."""
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
            from service.remote.block_file import BlockFile
            from service.remote.changes import TableChanges
            from service.remote.primaries import Primaries, Refused
            from service.remote.records import check_records
            from service.remote.row_reader import RowReader
            from service.remote.scrub import Scrub
            from service.remote.topology import Unreachable
        except ModuleNotFoundError as error:
            raise ArtifactError(f"table {name!r} is remote, which needs the extra [remote]: {error}") from error

        cache, cached = self._cache, None
        end_s = time.monotonic() + _OPEN_S
        fingerprint = fingerprint_of(artifact)
        layout = TableLayout.of(model, name, fingerprint, entry)
        topology = self._topology(address)
        check_records(layout, topology, end_s)
        reader = RowReader(layout, address, topology)
        with self._changing:
            primaries = self._primaries.setdefault(address, Primaries(address, topology))
        changes = TableChanges(layout, primaries, entry.dtype, fingerprint)
        try:
            changes.begin(end_s)
        except (Unreachable, Refused) as error:
            raise TableUnreachable(f"changes of table {name!r} can not be followed: {error}") from error
        if cache is not None:
            changes.listeners.append(partial(cache.forget, (model, version, name)))
            changes.on_heard = partial(cache.heard, (model, version, name))
        defaults: dict[int, Array] = {}
        if address.on_unavailable == "default_row":
            defaults |= _defaults(reader, manifest, name)
            changes.listeners.append(_reading_again(reader, defaults))
        elif address.on_unavailable == "stale":
            if cache is None or not cache.holds_rows:
                raise ArtifactError(
                    f"table {name!r} has on_unavailable=stale, and no cache can have its rows: give "
                    "--remote_cache_bytes, and do not give --data_plane=python"
                )
            cached = partial(cache.rows, layout, version)
        with self._changing:
            self._readers[model, version, name] = reader
            self._changes.add(changes)
        scrub = Scrub(layout, primaries, BlockFile(layout, artifact, entry))
        self._scrubbing.add((model, version, name), address, scrub)
        extra = {"model": model, "version": version, "table": name, "cluster": str(address)}
        logger.info("table is remote", extra=extra)
        return RemoteTable(table_info(manifest, name, layout.nbytes), reader, defaults, changes, cached)

    def _topology(self, address: StoreAddress) -> Topology:
        from service.remote.topology import Topology

        with self._changing:
            return self._topologies.setdefault(address, Topology(address))

    def counts(self) -> dict[Subject, ReadCounts]:
        """Returns (model, version, table) -> counts of the reads by Python, for the remote tables of loaded
        versions.
        """
        with self._changing:
            return {subject: reader.counts for subject, reader in self._readers.items()}

    def state(self) -> RemoteState:
        """Returns which clusters can be reached, and what the comparison of their blocks has found, for metrics."""
        with self._changing:
            topologies = dict(self._topologies)
        reached = {str(address): address not in self._problems for address in topologies}
        silent = {
            str(address): sum(not node.answers for node in topology.status())
            for address, topology in topologies.items()
        }
        return RemoteState(reached, silent, self._scrubbing.counts())

    def clusters(self) -> list[dict[str, object]]:
        """Returns each cluster's nodes, and why the cluster can not be reached ("" if it can), for the status page."""
        with self._changing:
            topologies = dict(self._topologies)
        return [
            {
                "cluster": str(address),
                "problem": self._problems.get(address, ""),
                "tables": self._scrubbing.of(address),
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
        with self._changing:
            readers = list(self._readers.items())
        for (name, version, table), reader in readers:
            why = self._problems.get(reader.address, "")
            if name == model and why and reader.address.on_unavailable == "error":
                return f"table {table!r} of version {version} can not be reached: {why}"
        return self._scrubbing.problem(model)

    def look(self) -> None:
        """Checks each cluster and all its nodes; logs each cluster that can not be reached, or can be reached again."""
        with self._looking:
            with self._changing:
                topologies = dict(self._topologies)
            problems = {address: why for address, topology in topologies.items() if (why := topology.look())}
            self._looked_at = frozenset(topologies)
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

        def run() -> None:
            while not stop.wait(_LOOK_S):
                self.look()
                if self._cache is not None:
                    self._cache.refresh()

        def follow() -> None:
            while not stop.wait(_FOLLOW_S):
                self.follow()

        def compare() -> None:
            while not stop.wait(_COMPARE_S):
                self.compare()

        self._scrubbing.watch(stop)
        threading.Thread(target=run, name="remote-tables", daemon=True).start()
        threading.Thread(target=compare, name="remote-replicas", daemon=True).start()
        threading.Thread(target=follow, name="remote-changes", daemon=True).start()

    def compare(self) -> None:
        """Checks which replicas of each cluster are in sync, and so may be read."""
        # service.remote is imported only if a table is remote, because it needs redis-py, an optional extra.
        from service.remote.replicas import Replicas

        with self._comparing:
            with self._changing:
                topologies = dict(self._topologies)
            for address, topology in topologies.items():
                if address not in self._replicas:
                    self._replicas[address] = Replicas(topology)
                try:
                    self._compare(self._replicas[address])
                except Exception:
                    # An error at one cluster must not fail the load of a version, nor keep the replicas of other
                    # clusters from being compared.
                    logger.exception("replicas of a cluster can not be compared", extra={"cluster": str(address)})

    def _compare(self, replicas: Replicas) -> None:
        found = replicas.compare()
        if self._cache is not None:
            self._cache.set_in_sync(found.in_sync, found.seconds)
            if found.is_map_old:
                self._cache.refresh()

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


def _reading_again(reader: RowReader, defaults: dict[int, Array]) -> Listener:
    """Returns a listener that reads changed default rows from the cluster again; a row that can not be read stays as it
    was.
    """
    import numpy as np

    def listen(ids: Array | None) -> None:
        rows = [row for row in defaults if ids is None or row in ids]
        if rows:
            found = reader.read(np.array(rows, np.int64))
            defaults.update((row, found.rows[n]) for n, row in enumerate(rows) if not found.is_missing[n])

    return listen


def _defaults(reader: RowReader, manifest: Manifest, table: str) -> dict[int, Array]:
    """Reads the default rows of a remote table, for use while the cluster is down, by row number: [row_bytes] uint8."""
    import numpy as np

    features = [name for name, feature in manifest.features.items() if feature.table == table]
    lookups = [one for signature in manifest.signatures.values() for one in signature.features.items()]
    # Row 0 is always read too: RemoteTable.stored_rows(), which reads for no feature, returns it in place of an
    # unreadable row.
    size = manifest.tables[table].vocabulary_size
    wanted = sorted({0, *(one.default_row for name, one in lookups if name in features and one.default_row < size)})
    found = reader.read(np.array(wanted, np.int64))
    if found.is_missing.any():
        raise TableUnreachable(f"default rows of table {table!r} can not be read: {found.why}")
    return dict(zip(wanted, found.rows, strict=True))
