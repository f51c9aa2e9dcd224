"""Runs the command embedding-server: reads the settings, and runs the server with them."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import (
    SettingsError,
    flags_without_effect,
    installed_version,
    prepare_libraries,
    read_settings,
    service_links,
    shown_settings,
)
from service.core.choice import with_data_plane
from service.observe.logs import LogWriter, configure_logging, name_requests_in_log, native_lines_in_log
from service.process.resources import check_threads, keep_freed_memory, raise_descriptor_limit

if TYPE_CHECKING:
    from service.process.app import App
    from service.process.reference_server import ReferenceServer

logger = logging.getLogger(__name__)


# Longest wait at the end of the process until its last log lines are written.
_FLUSH_S = 2.0


def run() -> NoReturn:
    """Runs the command embedding-server, and ends the process without the interpreter's own exit.

    That exit would wait for each thread of a pool, although one may wait for a disk or a client that never answers, and
    would free objects that TensorFlow's threads still use.
    """
    os._exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command embedding-server with the given arguments; returns the exit status.

    Returns:
      The exit status: 0 after a drain, 130 for an interrupt before the server runs, 2 for settings that can not be
      used, 1 with --strict for a model that has no version to load, and 1 after an error that the server did not
      expect.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    open_closed_streams()
    writer = LogWriter(os.dup(2))
    try:
        return _run(arguments, writer)
    finally:
        if writer.stop(_FLUSH_S):
            os.close(writer.descriptor)


def _run(arguments: Sequence[str], writer: LogWriter) -> int:
    try:
        settings = read_settings(arguments)
    except SettingsError as error:
        writer.write(f"embedding-server can not start:\n{error}\n".encode())
        return 2
    configure_logging(settings.log_level, settings.log_format, writer)
    with native_lines_in_log(writer):
        # The handlers that this installs for crashes call those of native_lines_in_log() afterwards.
        set_signals(writer.descriptor)
        try:
            return _start(settings, arguments)
        except StartError as error:
            logger.error("cannot start", extra={"reason": str(error)})
            return 2
        except KeyboardInterrupt:
            # Ctrl-C before the server handles signals itself, which is some seconds after the start.
            return 130
        except BaseException:
            # A panic of the native core is no Exception.
            logger.exception("the server ends: an error that it did not expect")
            return 1


def _start(settings: Settings, arguments: Sequence[str]) -> int:
    shown = shown_settings(settings)
    given = " ".join(f"--{name}={one['value']}" for name, one in shown.items() if not one["is_default"])
    told = f"embedding-server {installed_version()} {given}"
    logger.info("settings", extra={name: one["value"] for name, one in shown.items()} | {"told": told})
    if links := service_links():
        logger.info("variables of Kubernetes' service links are ignored", extra={"variables": links})
    for name, why in flags_without_effect(arguments).items():
        logger.warning("flag has no effect", extra={"flag": f"--{name}", "reason": why})
    if settings.strict and (missing := _base_path_faults(settings)):
        for reason in missing:
            logger.error("cannot start", extra={"reason": f"--strict: {reason}"})
        return 1
    return _serve(with_data_plane(settings))


def open_closed_streams() -> None:
    """Opens /dev/null as each of the descriptors 0, 1 and 2 that the parent process has closed.

    Otherwise the next file or socket would get the number, and native libraries would write their messages into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # The interpreter sets sys.stdout and sys.stderr to None if the descriptors are closed at its start.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def set_signals(log: int) -> None:
    """Makes crashes, SIGUSR1 and SIGQUIT write the stacks of all Python threads to the descriptor `log`; SIGHUP
    and SIGUSR2 do nothing.

    No such write waits for the log's reader, if the log is a pipe, a terminal or a file.
    """
    kind = os.fstat(log).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        # An open file of its own: O_NONBLOCK would otherwise change the log for all processes that share it.
        with contextlib.suppress(OSError):
            log = os.open(f"/proc/self/fd/{log}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    faulthandler.enable(log)
    for number in (signal.SIGUSR1, signal.SIGQUIT):
        faulthandler.register(number, log)
    # Later, the server reads the list of models again at a SIGHUP.
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _base_path_faults(settings: Settings) -> list[str]:
    # config_files is imported here and not at the top, because it imports numpy, and _serve() must first set the number
    # of numpy's threads.
    from service.configuration.config_files import base_path_faults

    return base_path_faults(settings)


def _server_of(settings: Settings) -> type[App] | type[ReferenceServer]:
    if settings.data_plane == "reference":
        from service.process.reference_server import ReferenceServer

        return ReferenceServer
    from service.process.app import App

    return App


def _serve(settings: Settings) -> int:
    prepare_libraries(settings.bytes_in_flight)
    # Garbage collection is off during the imports below: it would take a fifth of their time and find no garbage.
    gc.disable()
    # The server's modules are imported here and not at the top: their import is slow, and a wrong command line is
    # reported without it.
    import uvloop

    from service.control import request_context

    name_requests_in_log(request_context.request_id.get)
    raise_descriptor_limit()
    keep_freed_memory()
    if settings.data_plane == "core":
        check_threads(settings.num_threads)
    server = _server_of(settings)

    # gc.freeze() spares later garbage collections the imported objects, which live as long as the process.
    gc.freeze()
    gc.enable()
    if loading := uvloop.run(server(settings).run()):
        logger.warning("not waiting for models that still load", extra={"models": loading})
    return 0
