"""Checks assets.extra/saved_model_config.pb, the file with TensorFlow Serving's options to rewrite a model's graph.

Source: tensorflow_serving/servables/tensorflow/saved_model_config_util.cc (9d981c5).
"""

from __future__ import annotations

import logging
from pathlib import Path

from google.protobuf.message import DecodeError

from service.artifact.plain_file import read_plain_file
from service.errors import ArtifactError

SAVED_MODEL_CONFIG = Path("assets.extra/saved_model_config.pb")
# Largest file that is read; it holds a few options.
_MAX_BYTES = 16 << 20

logger = logging.getLogger(__name__)


def check_saved_model_config(artifact: Path) -> None:
    """Raises ArtifactError if a version's saved_model_config.pb is no protobuf message, as TensorFlow Serving does.

    Its fields are options of the graph optimizer, which change no answer: the server does not apply them.
    """
    path = artifact / SAVED_MODEL_CONFIG
    try:
        data = read_plain_file(path, _MAX_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    # empty_pb2 is imported only here: this takes 5 ms of the start, and few versions have a saved_model_config.pb.
    from google.protobuf.empty_pb2 import Empty

    try:
        # Parsing as protobuf's message Empty checks the wire format only: Empty skips all fields, because it knows
        # none.
        Empty.FromString(data)
    except DecodeError as error:
        raise ArtifactError(f"Unable to parse SavedModelConfig: {path}") from error
    if data:
        logger.info("saved_model_config is not applied", extra={"path": str(path)})
