"""Declares the names of the gRPC services, and the type of a method's handler."""

from __future__ import annotations

from collections.abc import Callable

API = "grpc"
PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
PREDICT = f"/{PREDICTION_SERVICE}/Predict"

# Type of a gRPC method's handler: takes the request's bytes and its deadline (on the engine's clock, or None), and
# returns the answer's bytes; raises ServiceError.
Handler = Callable[[bytes, float | None], bytes]
