"""Names an artifact's signatures and its files of requests, and the batch sizes of its padded lookup."""

from __future__ import annotations

LOOKUP = "lookup"
LOOKUP_TENSOR_CORE = "lookup_tpu_tensor_core"
PREDICT = "serving_default"
PREDICT_EXAMPLES = "serve_examples"
RATING_OUTPUT = "rating"
EXAMPLES_INPUT = "examples"
# TensorFlow 2 names the graph's initialiser among the signatures.
INIT_OP = "__saved_model_init_op"
DEFAULT_BATCH_SIZES = (1, 8, 64, 512)


WARMUP_PATH = "assets.extra/tf_serving_warmup_requests"
RECORDED_PATH = "assets.extra/recorded_predictions"
