"""Runs the command embedding-server: reads the settings, and runs the server with them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from service.configuration.settings import Settings
from service.configuration.settings_reading import (
    SettingsError,
    flags_without_effect,
    prepare_libraries,
    read_settings,
    service_links,
)
from service.configuration.start_error import StartError
from service.native.choice import with_data_plane
from service.observe.logs import configure_logging, name_requests_in_log
from service.observe.native_lines import native_lines_in_log
from service.process.resources import keep_freed_memory, raise_descriptor_limit

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command embedding-server with the given arguments; returns the exit status.

    Returns:
      The exit status: 0 after a drain, 2 for settings that can not be used, 1 with --strict for a model that has no
      version to load.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        settings = read_settings(arguments)
    except SettingsError as error:
        sys.stderr.write(f"embedding-server can not start:\n{error}\n")
        return 2
    is_json = configure_logging(settings.log_level, settings.log_format)
    logger.info("settings", extra=asdict(settings))
    if links := service_links():
        logger.info("variables of Kubernetes' service links are ignored", extra={"variables": links})
    for name, why in flags_without_effect(arguments).items():
        logger.warning("flag has no effect", extra={"flag": f"--{name}", "reason": why})
    if settings.strict and (missing := _base_path_faults(settings)):
        for reason in missing:
            logger.error("cannot start", extra={"reason": f"--strict: {reason}"})
        return 1
    try:
        settings = with_data_plane(settings)
    except StartError as error:
        sys.stderr.write(f"embedding-server can not start:\n{error}\n")
        return 2
    with native_lines_in_log() if is_json else contextlib.nullcontext():
        return _serve(settings)


def _base_path_faults(settings: Settings) -> list[str]:
    # model_config is imported here and not at the top, because it imports numpy, and _serve() must first set the number
    # of numpy's threads.
    from service.configuration.model_config import base_path_faults

    return base_path_faults(settings)


def _serve(settings: Settings) -> int:
    prepare_libraries()
    # Garbage collection is off during the imports below: it would take a fifth of their time and find no garbage.
    gc.disable()
    # The server's modules are imported here and not at the top: their import is slow, and a wrong command line is
    # reported without it.
    import uvloop

    from service.engine import request_context

    name_requests_in_log(request_context.request_id.get)
    raise_descriptor_limit()
    keep_freed_memory(settings.keep_freed_mib)
    from service.process.app import App

    # gc.freeze() spares later garbage collections the imported objects, which live as long as the process.
    gc.freeze()
    gc.enable()
    try:
        loading = uvloop.run(App(settings).run())
    except StartError as error:
        logger.error("cannot start", extra={"reason": str(error)})
        return 2
    if loading:
        logger.warning("not waiting for models that still load", extra={"models": loading})
        logging.shutdown()
        # os._exit() skips the interpreter's own exit, which would free objects that TensorFlow's threads still use.
        os._exit(0)
    return 0
