"""Finds the definitions of TensorFlow's ops, which say what outputs an op has and whether it has side effects."""

from __future__ import annotations

from functools import cache
from typing import Any

from service.artifact.protos import message_class
from service.graph.library import find_core


@cache
def op_definition(name: str) -> Any | None:
    """Returns the OpDef of an op; None if TensorFlow has no op of this name. Concurrency: any thread."""
    if (found := find_core()) is not None:
        data = found.core.op_definition(found.library, name)
        return None if data is None else message_class("tensorflow.OpDef").FromString(data)
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)
