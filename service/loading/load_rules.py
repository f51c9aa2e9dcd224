"""Builds, from the settings, the rules by which versions are loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from service.configuration.settings import Settings
from service.configuration.start_error import StartError
from service.deltas.journal_pruning import JournalPruning
from service.deltas.rules import DeltaRules
from service.engine.load_rules import LoadRules
from service.engine.model_config import ModelConfig, Origin
from service.engine.servable import Servable
from service.engine.version_source import OpenStore
from service.errors import InvalidRequest
from service.loading.batching_rules import BatchingRules, read_rules
from service.loading.feature_lookups import CompileNative
from service.loading.loader import FillCaches, HotRows, OpenRemote, ServableLoader, fill_nothing, no_hot_rows
from service.loading.paged_tables import PagedTables
from service.loading.table_pages import TablePages
from service.loading.table_verification import TableVerification
from service.observe.metrics import Metrics
from service.tables.residency import Residency


def create_load_rules(
    settings: Settings,
    metrics: Metrics,
    *,
    batching: BatchingRules | None,
    pages: TablePages | None,
    verification: TableVerification | None,
    wake_follower: Callable[[], None],
    compile_native: CompileNative,
    show_lookups: Callable[[Servable], None] | None = None,
    open_store: OpenStore | None = None,
    open_remote: OpenRemote | None = None,
    hot_rows: HotRows = no_hot_rows,
    fill_caches: FillCaches = fill_nothing,
    paged_tables: PagedTables | None = None,
    origin_of: Callable[[str], Origin] = lambda model: "operator",
    on_list: Callable[[Sequence[ModelConfig]], None] = lambda configs: None,
) -> LoadRules:
    """Returns the LoadRules of the settings, by which a ModelSet loads versions.

    Args:
      batching: batches graph runs. pages: makes tables' pages huge. verification: compares tables with their checksums.
      wake_follower: called when this server changed rows.
      compile_native: compiles versions for the native core.
      show_lookups, open_remote, hot_rows, fill_caches, paged_tables: as in ServableLoader.
      origin_of: returns who chose a model's base path.
      open_store, on_list: as in LoadRules.
    """
    threads, inter_op_threads = settings.parallelism
    pruning = journal_pruning(settings)
    return LoadRules(
        load=ServableLoader(
            settings.tags,
            settings.graph_signatures,
            threads,
            partial(compile_native, has_hot_rows=settings.hot_rows, strict_shapes=settings.strict_shapes),
            settings.warmup_iterations,
            inter_op_threads,
            on_warmup=metrics.warmups.warmed_up,
            batching=batching,
            has_towers=settings.graph_towers,
            residency=residency_of(settings),
            paged_tables=paged_tables,
            pages=pages,
            verification=verification,
            deltas=delta_rules(settings, wake_follower),
            show_lookups=show_lookups,
            open_remote=open_remote,
            hot_rows=hot_rows,
            fill_caches=fill_caches,
            refuses_ops=partial(_refuses_ops, settings.refuse_unsafe_ops, origin_of),
            is_strict=settings.strict,
        ),
        max_retries=settings.max_num_load_retries,
        retry_interval_s=settings.load_retry_interval_s,
        settle_s=settings.version_settle_s,
        slots=threading.BoundedSemaphore(settings.num_load_threads) if settings.num_load_threads else nullcontext(),
        load_timeout_s=settings.load_timeout_s,
        on_look=pruning.looked if pruning is not None else lambda model, versions: None,
        open_store=open_store,
        on_list=on_list,
        reloads_replaced=settings.reload_replaced_versions,
    )


def _refuses_ops(choice: str, origin_of: Callable[[str], Origin], model: str) -> bool:
    return choice == "on" or (choice == "auto" and origin_of(model) != "operator")


def batching_of(settings: Settings) -> BatchingRules | None:
    """Returns the rules for batching graph runs; None without --enable_batching. Raises StartError."""
    if not settings.enable_batching:
        if settings.batching_parameters_file:
            raise StartError("--batching_parameters_file is set without setting --enable_batching to true.")
        return None
    try:
        return read_rules(settings.batching_parameters_file, settings.enable_per_model_batching_parameters)
    except InvalidRequest as error:
        raise StartError(f"--batching_parameters_file={settings.batching_parameters_file}: {error.message}") from error


def delta_rules(settings: Settings, wake: Callable[[], None]) -> DeltaRules | None:
    """Returns the settings for deltas (files of changed rows of a version); None if the settings turn deltas off."""
    if not settings.delta_poll_wait_seconds:
        return None
    return DeltaRules(
        journal_folder=_journal_folder(settings),
        max_rows=settings.delta_max_rows,
        max_file_bytes=settings.delta_max_file_mib << 20,
        max_journal_bytes=settings.delta_journal_max_mib << 20,
        wake=wake,
    )


def journal_pruning(settings: Settings) -> JournalPruning | None:
    """Returns the JournalPruning, which removes journals of versions that are gone.

    None if the server keeps no journals, or does not look for deltas (--delta_poll_wait_seconds=0).
    """
    folder = _journal_folder(settings)
    return JournalPruning(folder) if folder is not None and settings.delta_poll_wait_seconds else None


def _journal_folder(settings: Settings) -> Path | None:
    return Path(settings.delta_journal_dir).absolute() if settings.delta_journal_dir else None


def residency_of(settings: Settings) -> Residency:
    """Returns how the settings prepare the memory pages of tables before a version answers.

    For --table_pages=auto, loading.table_pages makes pages huge later.
    """
    pages = settings.table_pages
    if pages == "auto":
        # With --table_pages=auto, huge pages are asked for before a version answers only if --table_prefault reads
        # every page then anyway.
        pages = "huge" if settings.table_prefault else "normal"
    return Residency(
        is_prefaulted=settings.table_prefault,
        bytes_per_s=settings.table_prefault_mib_per_s * 2**20,
        lock=settings.table_lock,
        advice=pages,
        is_warmed=settings.warm,
    )
