"""Handles the signals that stop the server, and bounds the time that its end takes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

from service.process.own_thread import in_own_thread

logger = logging.getLogger(__name__)

# Longest wait, in seconds, for each kind of file that the server writes at its end.
_WRITE_S = 5.0


def handle_signals(
    stop: asyncio.Event, *, force: Callable[[], None], on_hangup: Callable[[], None], end_s: float
) -> None:
    """Makes SIGTERM and SIGINT set `stop`, and end the process after end_s seconds, whatever it waits for then.

    Concurrency: event loop only.

    Args:
      force: called at a second signal, and must not block.
      on_hangup: called in a thread at each SIGHUP.
    """

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            logger.warning("second signal: not waiting for requests in flight", extra={"signal": name})
            force()
            return
        logger.info("draining", extra={"signal": name})
        threading.Thread(target=_end_after, args=(end_s,), name="end-in-time", daemon=True).start()
        stop.set()

    def hang_up() -> None:
        logger.info("SIGHUP: the list of models is read again")
        threading.Thread(target=on_hangup, name="hangup", daemon=True).start()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up)


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    logger.error("the shutdown takes too long: the process ends without it", extra={"seconds": seconds})
    logging.shutdown()
    os._exit(0)


async def write_last(work: Mapping[str, Callable[[], object]]) -> None:
    """Calls functions that write files at the server's end, one after the other, and waits for each a few seconds."""
    for name, write in work.items():
        try:
            await asyncio.wait_for(in_own_thread(write, name), _WRITE_S)
        except TimeoutError:
            logger.warning("not waiting for a disk", extra={"written": name, "seconds": _WRITE_S})
