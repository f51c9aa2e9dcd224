"""The command line: flags to settings to app."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict

import uvloop

from service.lookup import kernel_cache
from service.observability import configure_logging
from service.settings import SettingsError, kernel_cache_dir, quiet_tensorflow, read_settings

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit status: 0 after a drain, 2 for settings that can not be used."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    except SettingsError as error:
        sys.stderr.write(f"embedding-server can not start:\n{error}\n")
        return 2
    configure_logging(settings.log_level, settings.log_format)
    logger.info("settings", extra=asdict(settings))
    quiet_tensorflow()
    kernel_cache.use(kernel_cache_dir(settings.kernel_cache_dir))
    # Importing the app compiles the kernels, or reads them from the cache chosen above.
    from service.app import App, StartError

    try:
        uvloop.run(App(settings).run())
    except StartError as error:
        logger.error("cannot start", extra={"reason": str(error)})
        return 2
    return 0
