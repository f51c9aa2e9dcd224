"""Decides whether the native core or Python answers requests, and logs why."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace

from service.configuration.settings import Settings
from service.configuration.start_error import StartError

logger = logging.getLogger(__name__)

_MISSING = (
    "the native core is not installed, so Python answers: a lookup of one row takes several times as long, and large "
    "requests delay small ones. To get the core, install Rust (rustup, or Debian's rustc-web and cargo-web) and run "
    "`pip install` again"
)


def has_core() -> bool:
    """Says whether the native core is installed and can be loaded in this process."""
    try:
        importlib.import_module("service._native")
    except ImportError:
        return False
    return True


def with_data_plane(settings: Settings, has_core: Callable[[], bool] = has_core) -> Settings:
    """Returns the settings with "native" or "python" in place of data_plane "auto"; logs why the core is not used.

    Raises:
      StartError: --data_plane=native, but the core is not installed.
    """
    if settings.data_plane == "python":
        return settings
    if not has_core():
        if settings.data_plane == "native":
            raise StartError(f"--data_plane=native: {_MISSING}, or leave the flag out.")
        logger.warning(_MISSING)
        return replace(settings, data_plane="python")
    if why := _not_native(settings):
        logger.warning("Python answers in place of the native core", extra={"reason": why})
        return replace(settings, data_plane="python")
    return replace(settings, data_plane="native")


def _not_native(settings: Settings) -> str:
    """Returns why a setting needs the Python servers in place of the native core; "" if no setting does."""
    if settings.grpc_channel_arguments:
        return "--grpc_channel_arguments are settings of Google's library"
    return ""
