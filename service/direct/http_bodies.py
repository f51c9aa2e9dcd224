"""HTTP bodies of plain lookups to bodies of answers; None for everything else.

The general path reads, answers, refuses and counts whatever comes back as None; what does not is answered as it would.
"""

from __future__ import annotations

import re
from threading import get_ident
from typing import NamedTuple

import numpy as np

from service.codecs.oip_json import decode_infer
from service.codecs.oip_models import FALLBACK_SIGNATURE
from service.core.engine import Engine
from service.core.errors import ServiceError
from service.core.shortcuts import Shortcut
from service.core.types import ModelRef
from service.direct import json_scan
from service.direct.binary_signature import BinaryAnswer, BinaryRequest, BinarySignature
from service.direct.json_signature import BodyShape, JsonRequest, JsonSignature
from service.direct.memory import address_of
from service.direct.scan import (
    COLUMNS,
    CONTENT,
    DTYPE,
    FLOAT,
    INT32,
    INT64,
    KIND,
    MAX_INPUTS,
    SIZE,
    VALUES_AT,
    VALUES_LENGTH,
)
from service.direct.scratch import Buffer, Scratch, buffer_of
from service.direct.thread_state import ThreadStates
from service.lookup.backend import OpenedLookups

# Which shortcuts of a servable take what is read here.
JSON, BINARY = "JSON", "binary tensors"
LOOKUP, PREDICT, INFER = "lookup", "predict", "infer"
DEFAULT_LOOKUP_SIGNATURE = "lookup"
# What direct.gather calls them, and their bytes.
_DATATYPES = {"INT64": (INT64, 8), "INT32": (INT32, 4), "FP32": (FLOAT, 4)}
# Heads of binary requests that are remembered; a client's are alike, but for the sizes of ragged inputs.
_MAX_HEADS, _MAX_HEAD_BYTES = 256, 4096
_KEY_MASK = (1 << json_scan.WIDE_SHIFT) - 1
_NAME = re.compile(b"([ -~]*)([\\x00\\x01])")


def shortcuts(lookups: OpenedLookups, model: str, version: int) -> dict[tuple[str, str], Shortcut]:
    """Returns the shortcuts of a version's lookup signatures, as Servable has them."""
    found: dict[tuple[str, str], Shortcut] = {}
    for name in lookups.lookup_names:
        spec, plan = lookups.signatures[name], lookups.backend.plan(name)
        if plan.plain_outputs:
            found[JSON, name] = JsonSignature(spec, plan)
            found[BINARY, name] = BinarySignature(spec, plan, model, version)
    return found


class Head(NamedTuple):
    """What the JSON of an inference request with binary tensors says; see BinaryRequest.

    inputs: [1 + inputs, COLUMNS] int64, as direct.scan describes them.
    """

    signature_name: str
    id: str | None
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: Buffer
    sizes: tuple[int, ...]


class DirectHttp:
    """Answers plain lookups over HTTP by what direct.json_scan or the codec says they are. Concurrency: any thread.

    Args:
      strict_json: take no bare NaN and Infinity.
    """

    def __init__(self, engine: Engine, api: str, *, strict_json: bool = False) -> None:
        self._directly = engine.directly
        self._api = api
        self._strict = strict_json
        self._states = ThreadStates()
        self._ints = Scratch("i8")
        self._shapes: dict[bytes, BodyShape] = {}
        # By the JSON of a request and the size of its whole body.
        self._heads: dict[tuple[bytes, int], Head] = {}

    def lookup(self, ref: ModelRef, body: bytes, started_s: float) -> bytes | None:
        """Returns the body of a :lookup's answer."""
        return self._json(ref, body, started_s, LOOKUP, DEFAULT_LOOKUP_SIGNATURE)

    def predict(self, ref: ModelRef, body: bytes, started_s: float) -> bytes | None:
        """Returns the body of a :predict's answer."""
        return self._json(ref, body, started_s, PREDICT, "")

    def _json(self, ref: ModelRef, body: bytes, started_s: float, method: str, default: str) -> bytes | None:
        if type(body) is not bytes:
            # Compiled code reads it at its address.
            body = bytes(body)
        state = self._states[get_ident()]
        size = json_scan.capacity(len(body))
        ints = self._ints.of(4 * size)
        result = json_scan.scan(address_of(body), len(body), ints.address, size, state.found_at, state.skeleton_at)
        if result < 0:
            return None
        kind = bytes(state.skeleton[: result & _KEY_MASK])
        shape = self._shapes.get(kind) or self._shape(kind)
        if (shape.form == json_scan.FEATURES) != (method == LOOKUP):
            return None
        rows, is_wide = result >> json_scan.ROWS_SHIFT, result >> json_scan.WIDE_SHIFT & 1 == 1
        answer: bytes | None = self._directly.answer(
            ref,
            shape.signature_name or default,
            JsonRequest(state, ints, rows, is_wide, kind, shape),
            wire_format=JSON,
            api=self._api,
            method=method,
            started_s=started_s,
        )
        return answer

    def _shape(self, kind: bytes) -> BodyShape:
        # Names are printable, so that the bytes behind them end them.
        parts = _NAME.findall(kind, 1)
        members = tuple([(name, end[0] == json_scan.RAGGED) for name, end in parts[1:]])
        shape = BodyShape(kind[0], parts[0][0].decode(), members)
        if len(self._shapes) >= _MAX_HEADS:
            self._shapes.clear()
        self._shapes[kind] = shape
        return shape

    def infer(self, ref: ModelRef, header_length: str, body: bytes, started_s: float) -> BinaryAnswer | None:
        """Returns the answer to an inference request whose tensors are all binary.

        Args:
          header_length: the header that says how long its JSON is.
        """
        if type(body) is not bytes:
            body = bytes(body)
        length = int(header_length) if header_length.isascii() and header_length.isdigit() else 0
        if not 0 < length <= min(len(body), _MAX_HEAD_BYTES):
            return None
        key = (body[:length], len(body))
        head = self._heads.get(key) or self._head(key, header_length, body)
        if head is None:
            return None
        state = self._states[get_ident()]
        inputs = head.inputs.view
        state.found[: len(inputs)] = inputs
        answer: BinaryAnswer | None = self._directly.answer(
            ref,
            head.signature_name,
            BinaryRequest(body, state, head.sizes, head.names, head.outputs, head.id),
            wire_format=BINARY,
            api=self._api,
            method=INFER,
            started_s=started_s,
            fallback_signature=FALLBACK_SIGNATURE,
        )
        return answer

    def _head(self, key: tuple[bytes, int], header_length: str, body: bytes) -> Head | None:
        try:
            parsed = decode_infer(body, header_length, strict=self._strict)
        except ServiceError:
            return None
        forms = {parsed.is_binary} if not parsed.outputs else set()
        forms |= {parsed.binary.get(name, parsed.is_binary) for name in parsed.outputs}
        if forms != {True} or len(parsed.inputs) > MAX_INPUTS:
            return None
        inputs = np.zeros((1 + len(parsed.inputs), COLUMNS), np.int64)
        at = len(key[0])
        for row, (_, datatype, shape, data) in zip(inputs[1:], parsed.inputs, strict=True):
            number, width = _DATATYPES.get(datatype, (0, 0))
            if isinstance(data, list) or not number or len(shape) != 1 or len(data) != shape[0] * width:
                return None
            row[DTYPE], row[KIND], row[SIZE] = number, CONTENT, shape[0]
            row[VALUES_AT], row[VALUES_LENGTH] = at, len(data)
            at += len(data)
        # What is kept must not hold the body.
        head = Head(
            parsed.signature_name,
            parsed.id,
            tuple([tensor.name for tensor in parsed.inputs]),
            parsed.outputs,
            buffer_of(inputs),
            tuple(inputs[:, SIZE].tolist()),
        )
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[key] = head
        return head
