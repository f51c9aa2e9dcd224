"""Keeps the models of the reference: versions found by the engine's policies; and says which settings it follows."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from service.artifact.completeness import check_tree
from service.artifact.delta_file import DELTAS_FOLDER
from service.artifact.dict_vocabulary import open_vocabularies
from service.artifact.manifest import Manifest
from service.artifact.signature_def import SERVE_TAGS, read_signatures
from service.artifact.signature_rules import described, lookup_rules, signature_faults
from service.artifact.unsafe_ops import check_ops
from service.configuration.settings import Settings, StartError
from service.errors import (
    ArtifactError,
    BackendFailure,
    GraphUnavailable,
    PayloadTooLarge,
    ServiceError,
    TableNotFound,
    id_out_of_range,
)
from service.reference.graphs import Graph
from service.reference.inputs import check_joined, check_names, checked, chosen_outputs
from service.reference.lookups import Lookup
from service.reference.rows import Table, open_tables
from service.types import INIT_SIGNATURE, Array, ModelRef, SignatureSpec, Tensors
from service.versions.loads import LoadRules
from service.versions.model_config import ModelConfig
from service.versions.model_set import ModelSet
from service.versions.registry import Registry
from service.versions.servable import Servable

NOT_HERE = "the reference does not apply them; install the core, or remove them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Servable):
    """A servable whose requests this folder answers. Concurrency: any thread.

    lookups: lookup signature -> what it reads. graph: all other signatures; None: they can not run here.
    """

    rows_of: Mapping[str, Table]
    lookups: Mapping[str, Lookup]
    graph: Graph | None
    settings: Settings

    def run(
        self,
        spec: SignatureSpec,
        decode: Callable[[], Tensors],
        names: Mapping[str, object] | None = None,
        output_filter: tuple[str, ...] = (),
    ) -> dict[str, Array]:
        """Runs a signature on a request's inputs; returns the outputs by name.

        Args:
          decode: returns the inputs. names: their names, which are checked first if they are known before.

        Raises ServiceError; an error that is none becomes BackendFailure.
        """
        if names is not None:
            check_names(spec, names)
        inputs = decode()
        check_names(spec, inputs)
        outputs = chosen_outputs(spec, output_filter)
        arrays = checked(spec, inputs, strict_shapes=self.settings.strict_shapes)
        check_joined(spec, arrays, output_filter)
        try:
            results = self._run(spec, arrays, outputs)
        except ServiceError:
            raise
        except Exception as error:
            raise BackendFailure("The server failed to run this request; its log has the cause.") from error
        if (size := sum(array.nbytes for array in results.values())) > self.settings.max_response_bytes:
            raise PayloadTooLarge(
                f"The answer would hold {size} bytes, this server's limit is {self.settings.max_response_bytes} bytes; "
                "send fewer rows per request."
            )
        return results

    def _run(self, spec: SignatureSpec, arrays: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        if (lookup := self.lookups.get(spec.name)) is not None:
            return lookup.run(arrays, outputs)
        if self.graph is None or spec.name == INIT_SIGNATURE:
            raise GraphUnavailable(
                f'Signature "{spec.name}" runs a TensorFlow graph and this server runs without TensorFlow. Signatures '
                f"it can answer: {', '.join(sorted(self.lookups)) or 'none'}."
            )
        return self.graph.run(spec, arrays, outputs)

    def table(self, name: str) -> Table:
        """Returns a table by its name; raises TableNotFound."""
        if name not in self.rows_of:
            known = ", ".join(sorted(self.rows_of)) or "none"
            raise TableNotFound(f'Model "{self.name}" has no table "{name}". Tables: {known}.')
        return self.rows_of[name]

    def rows(self, table_name: str, ids: Array) -> Array:
        """Returns the rows of [N] int64 ids as float32; raises TableNotFound and IdOutOfRange."""
        table = self.table(table_name)
        size = table.info.vocabulary_size
        for place in np.flatnonzero((ids < 0) | (ids >= size))[:1]:
            raise id_out_of_range("ids", int(ids[place]), int(place), size)
        return table.rows(ids)

    def close(self) -> None:
        """Closes the graph's session; tables are unmapped with the last array on them."""
        if self.graph is not None:
            self.graph.close()


def load_model(settings: Settings, name: str, version: int, path: Path) -> Model:
    """Loads a version from its folder; raises ArtifactError, whose message names the fault."""
    check_tree(path)
    if settings.refuse_unsafe_ops == "on":
        check_ops(path / "saved_model.pb", settings.tags)
    if (path / DELTAS_FOLDER).exists():
        raise ArtifactError(f"{path} has deltas in {DELTAS_FOLDER}: {NOT_HERE}")
    return open_model(settings, name, version, path, Manifest.read(path))


def open_model(settings: Settings, name: str, version: int, path: Path, manifest: Manifest | None) -> Model:
    """Opens a version's tables and graph as load_model() does, but does not look for what is refused to be served."""
    signatures = read_signatures(path / "saved_model.pb", settings.tags)
    has_graphs = settings.graph_signatures != "off" and importlib.util.find_spec("tensorflow") is not None
    graph = Graph(path, settings.tags, settings.parallelism) if has_graphs else None
    make = partial(Model, name=name, version=version, backends={}, settings=settings, graph=graph)
    if manifest is None:
        if graph is None:
            raise ArtifactError(f"{path} has no lookup manifest, so all of it needs TensorFlow")
        model = make(signatures=signatures, rows_of={}, lookups={})
    else:
        if settings.tags != SERVE_TAGS:
            # The manifest is of the MetaGraph "serve"; another one may have fewer signatures over the same tables.
            kept = {one: entry for one, entry in manifest.signatures.items() if one in signatures}
            manifest = replace(manifest, signatures=kept)
        tables, vocabularies = open_tables(path, manifest), open_vocabularies(path, manifest)
        views = {
            feature: vocabularies[entry.vocabulary] for feature, entry in manifest.features.items() if entry.vocabulary
        }
        faults = signature_faults(manifest, signatures)
        specs, lookups = dict(signatures), {}
        for one, entry in manifest.signatures.items():
            if one in faults:
                continue
            specs[one] = described(signatures[one], entry, manifest, views)
            if entry.kind == "lookup":
                lookups[one] = Lookup.of(entry, manifest, tables, lookup_rules(signatures[one], entry, manifest))
        model = make(signatures=specs, rows_of=tables, lookups=lookups)
    needs_graph = model.signatures.keys() - model.lookups.keys() - {INIT_SIGNATURE}
    if graph is not None and needs_graph and settings.graph_signatures != "lazy":
        graph.open()
    return model


logger = logging.getLogger(__name__)

# Settings that the reference server follows.
FOLLOWED = frozenset(
    {
        *("models", "model_base_path", "model_name", "model_config_file", "model_config_file_poll_wait_seconds"),
        *("strict", "strict_readiness", "strict_shapes", "model_reload_timeout_s", "refuse_unsafe_ops"),
        *("allow_version_labels_for_unavailable_models", "host", "port", "rest_api_port", "grpc_socket_path"),
        *("file_system_poll_wait_seconds", "max_num_load_retries", "load_retry_interval_micros", "load_timeout_s"),
        *("first_loads_timeout_s", "version_settle_s", "reload_replaced_versions", "saved_model_tags"),
        *("graph_signatures", "tensorflow_session_parallelism"),
        *("tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism", "grpc_max_threads"),
        *("max_request_bytes", "max_response_bytes", "rest_api_strict_json", "rest_api_keep_alive_s"),
        *("grpc_channel_arguments", "enable_serialization_as_tensor_content", "shutdown_delay_s", "drain_timeout_s"),
        *("log_level", "log_format", "data_plane"),
    }
)
# Setting -> what it asks for, which the reference server does not do: the server would be less safe than asked for, or
# lack what the operator needs.
REFUSED: Mapping[str, str] = {
    "auth_config": "callers and rights",
    "console_secret_file": "the console",
    "admin_port": "the admin routes",
    "ssl_config_file": "TLS",
    "rest_api_ssl_config_file": "TLS",
    "remote_tables": "tables in clusters",
    "store_cache_dir": "object stores",
    "enable_batching": "batching",
    "batching_parameters_file": "batching",
    "enable_per_model_batching_parameters": "batching",
    "delta_journal_dir": "upserts",
    "request_log_root": "request logs",
    "monitoring_config_file": "metrics",
    "tracing": "traces",
    "max_drift": "the comparison of versions",
    "table_lock": "tables locked in memory",
    "verify_tables": "the comparison of tables with their checksums",
}


def check_settings(settings: Settings) -> None:
    """Raises StartError if a setting asks for what the reference server does not do; warns of those without effect."""
    changed = [field.name for field in dataclasses.fields(settings) if getattr(settings, field.name) != field.default]
    # "off" asks for what the reference server does.
    refused = [name for name in changed if name in REFUSED and getattr(settings, name) != "off"]
    if "tpu" in settings.tags:
        refused.append("saved_model_tags")
    if refused:
        told = (f"{REFUSED.get(name, 'graphs for a TPU')} (--{name})" for name in refused)
        raise StartError(
            f"the reference server does not do {', '.join(told)}: leave the flags out, or use the native core."
        )
    if idle := [f"--{name}" for name in changed if name not in FOLLOWED | REFUSED.keys()]:
        logger.warning("flags have no effect on the reference server", extra={"flags": idle})


def check_models(configs: Sequence[ModelConfig]) -> None:
    """Raises StartError if a list of models asks for what the reference server does not do."""
    for config in configs:
        if config.request_log is not None:
            raise StartError(f"model {config.name} has a logging_config: the reference server writes no request logs.")
        if config.remote_tables:
            raise StartError(f"model {config.name} has remote_tables: the reference server reads no clusters.")


class Models:
    """The models of a list, polled for new versions. Concurrency: any thread."""

    def __init__(self, settings: Settings) -> None:
        self.registry = Registry(lambda name, status: None, is_strict=settings.strict_readiness)
        rules = LoadRules(
            load=partial(load_model, settings),
            max_retries=settings.max_num_load_retries,
            retry_interval_s=settings.load_retry_interval_s,
            settle_s=settings.version_settle_s,
            load_timeout_s=settings.load_timeout_s,
            reloads_replaced=settings.reload_replaced_versions,
        )
        self.set = ModelSet(
            self.registry,
            rules,
            poll_interval_s=settings.file_system_poll_wait_seconds,
            reload_timeout_s=settings.model_reload_timeout_s,
            allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
        )

    def start(self, configs: Sequence[ModelConfig]) -> None:
        """Starts to serve a list of models, without waiting until they are loaded; raises StartError."""
        check_models(configs)
        self.set.start(configs)

    @contextmanager
    def lease(self, ref: ModelRef) -> Iterator[Model]:
        """Keeps the version that a reference names loaded for one request.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound, NotReady: there is no version that can answer.
        """
        with self.registry.lease(ref) as servable:
            assert isinstance(servable, Model)
            yield servable

    def problems(self) -> dict[str, str]:
        names = self.registry.models()
        return {name: problem for name in names if (problem := self.registry.problem(name))}
