"""Names of the services and what a handler is."""

from __future__ import annotations

from collections.abc import Callable

API = "grpc"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
PREDICT = f"/{PREDICTION_SERVICE}/Predict"

# (request's bytes, deadline on the engine's clock or None) to the response's bytes; raises ServiceError.
Handler = Callable[[bytes, float | None], bytes]
