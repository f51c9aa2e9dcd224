"""Names of the services and what a handler is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.codecs.framed_answer import Envelope, Framed
from service.core.shortcuts import Begun

API = "grpc"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
PREDICT = f"/{PREDICTION_SERVICE}/Predict"

# (request's bytes, deadline on the engine's clock or None) to the response's bytes; raises ServiceError.
Handler = Callable[[bytes, float | None], bytes]

# A handler of a few milliseconds at most; None: the request is not one, and belongs to the Handler of its path.
QuickHandler = Callable[[bytes, float | None], bytes | None]


class PredictDirectly(Protocol):
    """Predict in one step from bytes to bytes. Concurrency: any thread."""

    def __call__(
        self, data: bytes, deadline_s: float | None, *, as_content: bool, may_wait: bool = True
    ) -> bytes | None:
        """Returns the response's bytes; None where the general path must answer, refuse and count the request.

        Args:
          may_wait: whether the answer may take longer than a few milliseconds.
        """
        ...

    def begin(
        self,
        data: bytes,
        deadline_s: float | None,
        stream_id: int = 0,
        *,
        as_content: bool,
        may_wait: bool = True,
        envelope: Envelope | None = None,
    ) -> Begun | None:
        """Begins to do so; None where that is all. What it returns must be finished.

        Args:
          envelope, stream_id: the response may come as HTTP/2 frames of this stream, in this envelope.
        """
        ...

    def finish(self, begun: Begun) -> bytes | Framed | None:
        """Ends what the same thread has begun, as __call__ does. To be called once."""
        ...
