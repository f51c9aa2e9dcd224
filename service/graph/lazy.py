"""A graph that is opened when the first request needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from service.errors import ArtifactError, BackendFailure
from service.types import Array, Backend, Tensors


class LazyBackend:
    """Opens a backend at the first run and runs it from then on. Concurrency: any thread; the first ones wait."""

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        self._open_backend = open_backend
        self._backend: Backend | None = None
        self._opening = threading.Lock()

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Runs as the opened backend does; BackendFailure where it can not be opened, tried again next time."""
        if self._backend is None:
            with self._opening:
                if self._backend is None:
                    self._backend = self._open()
        return self._backend.run(signature_name, inputs, outputs)

    def _open(self) -> Backend:
        try:
            return self._open_backend()
        except ArtifactError as error:
            # It names folders of this server, which are no client's business; the log gets it as the cause.
            raise BackendFailure(
                "The graph of this signature can not be loaded; the server's log has the cause."
            ) from error

    def close(self) -> None:
        """Closes the backend if it was ever opened."""
        if self._backend is not None:
            self._backend.close()
