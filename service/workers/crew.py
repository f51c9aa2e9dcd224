"""A worker's side of working together: its shared listeners, reloads that all workers take, metrics of all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from service.core.errors import DeadlineExceeded, NotReady, ServiceError
from service.core.model_config import ModelConfig
from service.metrics.text import CONTENT_TYPE
from service.transports.tls_listener import Handshakes
from service.workers.counts import ConnectionCounts, Wire
from service.workers.fair_listener import Factory, FairListener
from service.workers.messages import LENGTH_BYTES, BadFrame, Frames, Message, encode
from service.workers.model_list import error_from_json, error_to_json, models_from_json, models_to_json

logger = logging.getLogger(__name__)

# Far over what the supervising process takes to add up metrics, hung workers included.
_SCRAPE_S = 5.0
# Over what it grants a worker beyond the time of a reload itself.
_RELOAD_GRACE_S = 20.0

Text = tuple[bytes, str]


@dataclass(frozen=True, slots=True)
class Own:
    """What a server has of its own and brings in.

    reload: (models, deadline, what to wait for before they are swapped in), see core.model_set.
    render: the text of its metrics.
    is_ready: whether it answers from every model.
    leave: called where the supervising process is gone.
    """

    reload: Callable[[Sequence[ModelConfig], float | None, Callable[[], None]], None]
    render: Callable[[], Text]
    is_ready: Callable[[], bool]
    leave: Callable[[], None]


class Crew:
    """The other workers, through the supervising process. Concurrency: any thread; join once.

    Args:
      control: the socket to the supervising process.
      hello: what it said at the start.

    place: which of the workers this is.
    """

    def __init__(self, control: socket.socket, hello: Message) -> None:
        self._control = control
        self._writing = threading.Lock()
        self.place: int = hello["place"]
        self._counts = ConnectionCounts(hello["counts"], hello["num_workers"])
        self.http_listener = socket.socket(fileno=hello["http"])
        self.admin_listener = None if hello["admin"] is None else socket.socket(fileno=hello["admin"])
        self.grpc_listeners = [socket.socket(fileno=descriptor) for descriptor in hello["grpc"]]
        models = hello["models"]
        self.models = None if models is None else models_from_json(models)
        self.config_text: str | None = hello["config_text"]
        self._answers: dict[int, _Answer] = {}
        self._decisions: dict[int, _Answer] = {}
        self._num_questions = 0
        self._own: Own

    @property
    def polls_config_file(self) -> bool:
        """Whether it is this worker that looks at the file of models for all."""
        return self.place == 0

    def workers(self) -> list[dict[str, Any]]:
        """Tells of each worker how many connections of each wire it holds; None where it takes none now."""
        return [
            {"worker": place, "is_this": place == self.place, **self._counts.held(place)}
            for place in range(self._counts.num_workers)
        ]

    def opener(self, wire: Wire, handshakes: Handshakes | None = None) -> Callable[..., FairListener]:
        """Returns what opens a listener of a wire: (loop, protocol factory, socket, number of connections held).

        Args:
          handshakes: secures connections; None: they are plaintext.
        """

        def open_listener(
            loop: asyncio.AbstractEventLoop,
            factory: Factory,
            listener: socket.socket,
            num_connections: Callable[[], int],
        ) -> FairListener:
            return FairListener(
                loop,
                factory,
                listener,
                num_connections,
                counts=self._counts,
                worker=self.place,
                wire=wire,
                is_ready=lambda: self._own.is_ready(),
                handshakes=handshakes,
            )

        return open_listener

    def join(self, own: Own) -> None:
        """Begins to answer the supervising process."""
        self._own = own
        threading.Thread(target=self._listen, name="crew", daemon=True).start()

    def listening(self) -> None:
        """Says that this worker takes connections, or will when it is its turn."""
        self._send("listening")

    def config_taken(self, text: str) -> None:
        """Says which text of the file of models holds now, for the one that looks at it next."""
        self._send("config_taken", text=text)

    def render(self) -> Text:
        """Returns the metrics of all workers; raises NotReady where they can not be had."""
        text = self._ask("scrape", _SCRAPE_S)["text"]
        return text.encode(), CONTENT_TYPE

    def reload(self, models: Sequence[ModelConfig], deadline_s: float | None, timeout_s: float) -> None:
        """Replaces the list of models in all workers, or in none; blocks.

        Args:
          deadline_s: on the monotonic clock; timeout_s holds beside it.

        Raises:
          ServiceError: what kept a worker from taking it.
        """
        seconds = timeout_s if deadline_s is None else min(timeout_s, max(deadline_s - time.monotonic(), 0))
        answer = self._ask("reload", seconds + _RELOAD_GRACE_S, models=models_to_json(models), seconds=seconds)
        if answer["error"]:
            raise error_from_json(answer["error"])

    def leave(self) -> None:
        """Tells the counts a last time, once nothing changes them any more."""
        self._tell_counts()

    def _ask(self, kind: str, timeout_s: float, **fields: Any) -> Message:
        with self._writing:
            self._num_questions += 1
            number = self._num_questions
        answer = self._answers[number] = _Answer()
        self._send(kind, id=number, **fields)
        try:
            return answer.wait(timeout_s)
        finally:
            del self._answers[number]

    def _send(self, kind: str, **fields: Any) -> None:
        data = encode(kind, **fields)
        try:
            with self._writing:
                self._control.sendall(data)
        except OSError:
            # The reading thread finds out as well, and ends this worker.
            logger.debug("the supervising process is gone")

    def _listen(self) -> None:
        frames = Frames()
        try:
            while data := self._control.recv(1 << 20):
                for message in frames.feed(data):
                    self._handle(message)
        except (OSError, BadFrame) as error:
            logger.error("no sense in what the supervising process says", extra={"reason": str(error)})
        logger.info("draining", extra={"reason": "the supervising process is gone"})
        self._own.leave()
        gone = {"error": error_to_json(NotReady("The server is shutting down."))}
        for answer in (*self._answers.copy().values(), *self._decisions.copy().values()):
            answer.give(gone)

    def _handle(self, message: Message) -> None:
        match message["kind"]:
            case "tell_counts":
                self._tell_counts()
            case "exposition" | "reloaded":
                if answer := self._answers.get(message["id"]):
                    answer.give(message)
            case "prepare":
                self._decisions[message["number"]] = _Answer()
                threading.Thread(target=self._take, args=(message,), name="crew-reload", daemon=True).start()
            case "decide":
                if decision := self._decisions.get(message["number"]):
                    decision.give(message)

    def _tell_counts(self) -> None:
        text, _ = self._own.render()
        self._send("counts", text=text.decode())

    def _take(self, message: Message) -> None:
        """Takes a list of models if all workers do."""
        number, seconds = message["number"], message["seconds"]
        decision = self._decisions[number]

        def agree() -> None:
            self._send("prepared", number=number)
            error = decision.wait(seconds + _RELOAD_GRACE_S)["error"]
            if error:
                raise error_from_json(error)

        error = None
        try:
            self._own.reload(models_from_json(message["models"]), time.monotonic() + seconds, agree)
        except Exception as caught:
            if not isinstance(caught, ServiceError):
                logger.exception("reload failed")
            error = error_to_json(caught)
        del self._decisions[number]
        self._send("finished", number=number, error=error)


class _Answer:
    """What a thread waits for and another brings."""

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._message: Message = {}

    def give(self, message: Message) -> None:
        """Brings the answer."""
        self._message = message
        self._is_there.set()

    def wait(self, seconds: float) -> Message:
        """Returns the answer; raises DeadlineExceeded, or NotReady where there will be none."""
        if not self._is_there.wait(seconds):
            raise DeadlineExceeded("The other workers did not answer in time.")
        if "kind" not in self._message:
            raise error_from_json(self._message["error"])
        return self._message


def read_hello(control: socket.socket) -> Message | None:
    """Waits for what the supervising process says first; None where it is gone already."""
    # No more than that: what follows is the crew's.
    head = control.recv(LENGTH_BYTES, socket.MSG_WAITALL)
    body = control.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return next(Frames().feed(head + body), None)


def cannot_start(control: socket.socket, reason: str) -> None:
    """Says why this worker will never listen."""
    control.sendall(encode("cannot_start", reason=reason))


def forget_parent_descriptors(descriptors: Sequence[int]) -> None:
    """Keeps what was inherited from whatever this worker starts itself."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
