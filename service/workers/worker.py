"""What a worker process runs: a server like any other, on sockets that it was given, as one of a crew."""

from __future__ import annotations

import logging
import socket
from typing import Any

from service.configuration.settings import Settings
from service.observability import configure_logging
from service.workers.crew import Crew, cannot_start, forget_parent_descriptors, read_hello


def main(descriptor: int) -> int:
    """Serves until a signal, or until the supervising process is gone.

    Args:
      descriptor: of the socket to the supervising process.
    """
    control = socket.socket(fileno=descriptor)
    hello = read_hello(control)
    if hello is None:
        return 0
    admin = [] if hello["admin"] is None else [hello["admin"]]
    forget_parent_descriptors([descriptor, hello["http"], *admin, *hello["grpc"], hello["counts"]])
    settings = Settings(**hello["settings"])
    configure_logging(settings.log_level, settings.log_format)
    _name_worker_in_log(hello["place"])
    from service.cli import serve

    return serve(settings, Crew(control, hello), lambda reason: cannot_start(control, reason))


def _name_worker_in_log(place: int) -> None:
    factory = logging.getLogRecordFactory()

    def with_worker(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = factory(*arguments, **more)
        record.worker = place
        return record

    logging.setLogRecordFactory(with_worker)
