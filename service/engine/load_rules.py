"""Declares the rules by which versions are loaded: the loader, retries, timeouts, and what is told of loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.engine.model_config import ModelConfig
from service.engine.servable import Servable
from service.engine.version_source import OpenStore

# Type of a function that loads a version: takes the model's name, the version, and the version's folder.
Load = Callable[[str, int, Path], Servable]


@dataclass(frozen=True, slots=True)
class LoadRules:
    """The rules for loading versions, which are the same for all models: loader, retries and timeouts.

    load: reads a version folder into a servable; raises ServiceError.
    max_retries: how often a version that failed by a fault of its folder is tried again, retry_interval_s apart.
    settle_s: how long a folder without a manifest must not have changed before the version is loaded.
    clock, wall_clock: seconds; clock is monotonic, wall_clock is the file system's.
    slots: a semaphore that is held during a load; it bounds the number of loads at a time.
    load_timeout_s: the time after which a load is given up; 0: never.
    look_timeout_s: the time after which a scan of a folder is given up.
    on_look: called after each scan of a folder with the versions of a model that have a folder or are loaded; None: the
      model's folder could not be read. Must not raise.
    open_store: opens the source of a base path in an object store; None: all base paths are folders.
    on_list: called with a list of models before the first load that follows it, and with the list before if a reload is
      refused. Must not raise.
    reloads_replaced: a served version is loaded again when other files lie under its number.
    """

    load: Load
    max_retries: int
    retry_interval_s: float
    settle_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    slots: AbstractContextManager[Any] = field(default_factory=nullcontext)
    load_timeout_s: float = 0.0
    look_timeout_s: float = 60.0
    on_look: Callable[[str, Collection[int] | None], None] = lambda model, versions: None
    open_store: OpenStore | None = None
    on_list: Callable[[Sequence[ModelConfig]], None] = lambda configs: None
    reloads_replaced: bool = False
