"""Opens the tables that --remote_tables names, and checks regularly whether their clusters can be reached."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import Manifest, TableEntry
from service.errors import ArtifactError
from service.remote.address import StoreAddress, address_of
from service.remote.counts import ReadCounts, Subject
from service.remote.layout import TableLayout
from service.tables.remote_table import RemoteTable
from service.tables.table import table_info
from service.types import Array

if TYPE_CHECKING:
    from service.remote.row_reader import RowReader
    from service.remote.topology import Topology

logger = logging.getLogger(__name__)

# Seconds that the load of a version waits for a cluster, and seconds between two checks whether a cluster answers.
_OPEN_S = 10.0
_LOOK_S = 1.0


class RemoteTables:
    """The remote tables of one server, with the state of their clusters. Concurrency: any thread.

    Args:
      addresses: by table, or by model/table.
      on_change: called when a cluster is reached again, or is not any more.
    """

    def __init__(self, addresses: Mapping[str, StoreAddress], on_change: Callable[[], None]) -> None:
        self._addresses = addresses
        self._on_change = on_change
        self._changing = threading.Lock()
        self._topologies: dict[StoreAddress, Topology] = {}
        self._problems: dict[StoreAddress, str] = {}
        # The references are weak, so that an unloaded version's reader is dropped with the version.
        self._readers: weakref.WeakValueDictionary[Subject, RowReader] = weakref.WeakValueDictionary()

    def open(self, model: str, version: int, artifact: Path, manifest: Manifest) -> dict[str, RemoteTable]:
        """Opens the remote tables of a version; returns them by name.

        Raises:
          ArtifactError: a cluster does not hold a table of this version, or can not be reached.
        """
        found = {}
        for name, entry in manifest.tables.items():
            address = address_of(self._addresses, model, name)
            if address is not None:
                found[name] = self._open(model, version, artifact, manifest, name, entry, address)
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
        # The import is here and not at the top, because redis-py is an optional extra.
        try:
            from service.remote.records import check_records
            from service.remote.row_reader import RowReader
        except ModuleNotFoundError as error:
            raise ArtifactError(f"table {name!r} is remote, which needs the extra [remote]: {error}") from error

        end_s = time.monotonic() + _OPEN_S
        layout = TableLayout.of(model, name, fingerprint_of(artifact), entry)
        topology = self._topology(address)
        check_records(layout, topology, end_s)
        reader = RowReader(layout, address, topology)
        defaults = _defaults(reader, manifest, name) if address.on_unavailable == "default_row" else {}
        with self._changing:
            self._readers[model, version, name] = reader
        extra = {"model": model, "version": version, "table": name, "cluster": str(address)}
        logger.info("table is remote", extra=extra)
        return RemoteTable(table_info(manifest, name, layout.nbytes), reader, defaults)

    def _topology(self, address: StoreAddress) -> Topology:
        from service.remote.topology import Topology

        with self._changing:
            return self._topologies.setdefault(address, Topology(address))

    def counts(self) -> dict[Subject, ReadCounts]:
        """Returns (model, version, table) -> counts of reads, for all remote tables."""
        with self._changing:
            return {subject: reader.counts for subject, reader in self._readers.items()}

    def problem(self, model: str) -> str:
        """Returns one line on a remote table of the model that can not be reached and has no default row, else ""."""
        if not self._problems:
            return ""
        with self._changing:
            readers = list(self._readers.items())
        for (name, version, table), reader in readers:
            why = self._problems.get(reader.address, "")
            if name == model and why and reader.address.on_unavailable == "error":
                return f"table {table!r} of version {version} can not be reached: {why}"
        return ""

    def look(self) -> None:
        """Checks each cluster and each of its nodes, and logs if one can not be reached or is reached again."""
        with self._changing:
            topologies = dict(self._topologies)
        problems = {address: why for address, topology in topologies.items() if (why := topology.look())}
        if problems != self._problems:
            for address, why in problems.items():
                if address not in self._problems:
                    logger.warning("cluster can not be reached", extra={"cluster": str(address), "reason": why})
            for address in self._problems:
                if address not in problems:
                    logger.info("cluster is reached again", extra={"cluster": str(address)})
            self._problems = problems
            self._on_change()

    def watch(self, stop: threading.Event) -> None:
        """Starts a thread that checks the clusters each second until stop is set; starts none if no table is remote."""
        if not self._addresses:
            return

        def run() -> None:
            while not stop.wait(_LOOK_S):
                self.look()

        threading.Thread(target=run, name="remote-tables", daemon=True).start()


def _defaults(reader: RowReader, manifest: Manifest, table: str) -> dict[int, Array]:
    """Reads the default rows of a remote table, for use while the cluster is down, by row number: [row_bytes] uint8."""
    import numpy as np

    features = [name for name, feature in manifest.features.items() if feature.table == table]
    lookups = [one for signature in manifest.signatures.values() for one in signature.features.items()]
    # Row 0 is always among them: it is the default row of reads that belong to no feature.
    size = manifest.tables[table].vocabulary_size
    wanted = sorted({0, *(one.default_row for name, one in lookups if name in features and one.default_row < size)})
    found = reader.read(np.array(wanted, np.int64))
    if found.is_missing.any():
        raise ArtifactError(f"default rows of table {table!r} can not be read: {found.why}")
    return dict(zip(wanted, found.rows, strict=True))
