"""Opens a signature's graph when the first request needs it, and not when its version is loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from service.errors import ArtifactError, BackendFailure
from service.types import Array, Backend, Tensors

Opened = TypeVar("Opened", bound=Backend)


class LazyBackend(Generic[Opened]):
    """A backend that opens the real backend at its first run.

    Concurrency: any thread; requests wait for the opening.
    """

    def __init__(self, open_backend: Callable[[], Opened]) -> None:
        self._open_backend = open_backend
        self._backend: Opened | None = None
        self._opening = threading.Lock()

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Runs a signature on the wrapped backend, which the first call opens.

        Raises BackendFailure if it can not be opened.
        """
        try:
            return self.opened().run(signature_name, inputs, outputs)
        except ArtifactError as error:
            # The text of the error's cause is logged and not sent: it names folders of this server, which clients must
            # not see.
            raise BackendFailure(
                "The graph of this signature can not be loaded; the server's log has the cause."
            ) from error

    def opened(self) -> Opened:
        """Returns the wrapped backend, which the first call opens; raises ArtifactError."""
        with self._opening:
            if self._backend is None:
                self._backend = self._open_backend()
            return self._backend

    def close(self) -> None:
        """Closes the wrapped backend, if a run has opened it."""
        if self._backend is not None:
            self._backend.close()
