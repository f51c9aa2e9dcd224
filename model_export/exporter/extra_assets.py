"""Where an artifact keeps files of requests, relative to its folder; read without TensorFlow."""

from __future__ import annotations

WARMUP_PATH = "assets.extra/tf_serving_warmup_requests"
RECORDED_PATH = "assets.extra/recorded_predictions"
