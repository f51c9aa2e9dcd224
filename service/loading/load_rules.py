"""How versions are loaded, as the settings ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

from service.configuration.settings import Settings
from service.core.errors import InvalidRequest
from service.core.repository import LoadRules
from service.core.servable import Servable
from service.loading.delta_rules import delta_rules, journal_pruning
from service.loading.graph_batching import GraphBatching, create_batching
from service.loading.loader import CompileNative, ServableLoader
from service.loading.memory_rules import residency_of
from service.loading.table_pages import TablePages
from service.loading.table_verification import TableVerification
from service.lookup.row_pool import row_runner
from service.metrics.metrics import Metrics
from service.start_error import StartError


def create_load_rules(
    settings: Settings,
    metrics: Metrics,
    *,
    batching: GraphBatching | None,
    pages: TablePages | None,
    verification: TableVerification | None,
    wake_follower: Callable[[], None],
    compile_native: CompileNative | None = None,
    show_lookups: Callable[[Servable], None] | None = None,
) -> LoadRules:
    """Returns what a ModelSet loads versions by.

    Args:
      batching: batches graph runs. pages: makes tables' pages huge. verification: holds tables against their checksums.
      wake_follower: called when rows were changed here.
      compile_native: compiles versions for the native core; None: there is no core.
      show_lookups: as in ServableLoader.
    """
    threads, inter_op_threads = settings.parallelism
    pruning = journal_pruning(settings)
    return LoadRules(
        load=ServableLoader(
            settings.tags,
            settings.graph_signatures,
            threads,
            settings.warmup_iterations,
            inter_op_threads,
            on_warmup=metrics.warmups.warmed_up,
            batching=batching,
            has_towers=settings.graph_towers,
            tower_batch_rows=settings.tower_batch_rows,
            lookup_runner=row_runner(settings.lookup_threads),
            residency=residency_of(settings),
            pages=pages,
            verification=verification,
            deltas=delta_rules(settings, wake_follower),
            compile_native=compile_native,
            show_lookups=show_lookups,
        ),
        max_retries=settings.max_num_load_retries,
        retry_interval_s=settings.load_retry_interval_s,
        settle_s=settings.version_settle_s,
        slots=threading.BoundedSemaphore(settings.num_load_threads) if settings.num_load_threads else nullcontext(),
        load_timeout_s=settings.load_timeout_s,
        on_look=pruning.looked if pruning is not None else lambda model, versions: None,
    )


def batching_of(settings: Settings, metrics: Metrics) -> GraphBatching | None:
    """Returns what batches graph runs, None where nothing does; raises StartError."""
    if not settings.enable_batching:
        if settings.batching_parameters_file:
            raise StartError("--batching_parameters_file is set without setting --enable_batching to true.")
        return None
    try:
        return create_batching(
            settings.batching_parameters_file,
            settings.enable_per_model_batching_parameters,
            num_processors=settings.graph_threads,
            observer=metrics.batches,
            clock=time.monotonic,
        )
    except InvalidRequest as error:
        raise StartError(f"--batching_parameters_file={settings.batching_parameters_file}: {error.message}") from error
