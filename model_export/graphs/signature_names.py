"""The names of an artifact's signatures and request files, and the default batch sizes of padded lookups."""

from __future__ import annotations

from typing import Any, get_args

from model_export.errors import ExportError
from service.artifact.manifest import LookupDevice

LOOKUP = "lookup"
LOOKUP_TENSOR_CORE = "lookup_tpu_tensor_core"
PREDICT = "serving_default"
PREDICT_EXAMPLES = "serve_examples"
RATING_OUTPUT = "rating"
EXAMPLES_INPUT = "examples"
DEFAULT_BATCH_SIZES = (1, 8, 64, 512)
# Path in the artifact of the file with recorded requests and the trained model's answers.
RECORDED_PATH = "assets.extra/recorded_predictions"


def lookup_devices(lookup_device: Any) -> tuple[LookupDevice, ...]:
    named = (lookup_device,) if isinstance(lookup_device, str) else tuple(lookup_device)
    choices: tuple[LookupDevice, ...] = get_args(LookupDevice)
    if named == ("both",):
        return choices
    if not named or len(set(named)) != len(named) or not set(named) <= set(choices):
        raise ExportError(f"lookup_device is {lookup_device!r}, expected 'cpu', 'tpu_tensor_core' or a list of both")
    return named
