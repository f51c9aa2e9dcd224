"""Decides whether the native core or the reference server answers requests, and logs why."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace

from service.configuration.settings import Settings, StartError

logger = logging.getLogger(__name__)

_HOW_TO_GET_IT = (
    "To get the core, install Rust (rustup, or Debian's rustc-web and cargo-web) and run `pip install` again"
)


def has_core() -> bool:
    try:
        importlib.import_module("service._native")
    except ImportError:
        return False
    return True


def with_data_plane(settings: Settings, has_core: Callable[[], bool] = has_core) -> Settings:
    """Returns the settings with "core" or "reference" in place of data_plane "auto"; logs that the reference is used.

    Raises:
      StartError: --data_plane=core, but the core is not installed.
    """
    if settings.data_plane == "core" and not has_core():
        raise StartError(
            f"--data_plane=core: the native core is not installed. {_HOW_TO_GET_IT}, or leave the flag out."
        )
    if settings.data_plane == "core" or (settings.data_plane == "auto" and has_core()):
        if idle := settings.idle_channel_arguments:
            told = {"flag": "--grpc_channel_arguments", "arguments": idle}
            logger.warning("channel arguments have no effect on the native core", extra=told)
        return replace(settings, data_plane="core")
    why = "--data_plane=reference asks for it" if settings.data_plane == "reference" else "the core is not installed"
    logger.warning(
        "this is the reference server: it answers many times slower than the native core, and lacks most settings",
        extra={"reason": f"{why}. {_HOW_TO_GET_IT}."},
    )
    return replace(settings, data_plane="reference")
