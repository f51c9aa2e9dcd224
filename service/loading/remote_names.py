"""Finds the tables that --remote_tables and the list of models name as remote; a name of no table is an error."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from service.engine.model_config import ModelConfig
from service.errors import ArtifactError
from service.near_names import did_you_mean
from service.remote.address import StoreAddress, remote_tables


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
        """Stores the addresses of remote tables in the list of models; the parser of the list has checked them."""
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
        found = {table: self._address(model, table, own) for table in tables}
        return {table: address for table, address in found.items() if address is not None}

    def _address(self, model: str, table: str, own: Mapping[str, StoreAddress]) -> StoreAddress | None:
        return own.get(table) or self._flag.get(f"{model}/{table}") or self._flag.get(table)

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
    """Returns an error text if --remote_tables names a MODEL/TABLE of no model in the list of models, else ""."""
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
