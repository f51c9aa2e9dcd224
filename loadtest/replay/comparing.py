"""Compares an answer with the recorded one, apart from what a server may choose freely, and lists intended changes.

Masked are the date, the server's own request ids, and the order of maps in protobuf and JSON.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import tomllib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from loadtest.replay.requests import Request, Stored
from loadtest.wire import ANSWERS, message_class

INTENDED = Path(__file__).parent / "intended.toml"


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of an answer that differs from the recorded one; "" where an answer lacks the part."""

    part: str
    was: str
    now: str


@dataclass(slots=True)
class Intended:
    """A change of answers that somebody decided.

    form: pattern of the forms of requests. request: regular expression that is searched in the request's text.
    parts: patterns of the parts that may differ. was, now: regular expressions that the old and the new part match.
    used: how many differences it covered.
    """

    reason: str
    form: str = "*"
    request: str = ""
    parts: Sequence[str] = ("*",)
    was: str = ""
    now: str = ""
    used: int = field(default=0, compare=False)

    def covers(self, request: Request, difference: Difference) -> bool:
        return (
            fnmatchcase(request.form, self.form)
            and any(fnmatchcase(difference.part, part) for part in self.parts)
            and re.search(self.was, difference.was, re.DOTALL) is not None
            and re.search(self.now, difference.now, re.DOTALL) is not None
            and re.search(self.request, request.text(), re.DOTALL) is not None
        )


def read_intended(file: Path = INTENDED) -> list[Intended]:
    """Reads the list of intended changes; raises ValueError for an entry without a reason."""
    found = [Intended(**entry) for entry in tomllib.loads(file.read_text()).get("change", [])]
    if any(not change.reason.strip() for change in found):
        raise ValueError(f"{file}: each change needs a reason")
    return found


def differences(
    request: Request, recorded: Sequence[Stored], answer: Stored, mask: Callable[[str], str] = str
) -> tuple[list[Difference], list[str]]:
    """Compares an answer with the recorded ones, of which there are several if the recorded server's answers vary.

    Args:
      mask: is applied to each part of an answer before the comparison.

    Returns:
      The differences from the nearest recorded answer, and the parts that vary among the recorded answers, which are
      not compared.
    """
    known = [_parts(request, one) for one in recorded]
    names = {name for parts in known for name in parts}
    varying = sorted(name for name in names if len({parts.get(name, "") for parts in known}) > 1)
    now, was = _parts(request, answer), known[0]
    was, now = ({name: mask(part) for name, part in parts.items()} for parts in (was, now))
    changed = sorted(
        name for name in names | now.keys() if name not in varying and was.get(name, "") != now.get(name, "")
    )
    return [Difference(name, was.get(name, ""), now.get(name, "")) for name in changed], varying


def without_nan_signs(part: str) -> str:
    """Returns a part of an answer with each quiet NaN positive, in hex digits, escapes or bytes.

    It may be a bfloat16, float32 or float64. A NaN that arithmetic makes is negative on x86-64 and positive on aarch64.
    """
    for zeros, byte in (("0000", "{:02x}"), (r"\000\000", r"\{:03o}"), ("\0\0", "{:c}")):
        # A float32 ends with the two bytes of a bfloat16.
        for head in (byte.format(0xC0), zeros + byte.format(0xF8)):
            part = part.replace(head + byte.format(0xFF), head + byte.format(0x7F))
    return part


def _parts(request: Request, answer: Stored) -> dict[str, str]:
    if "lost" in answer:
        return {"lost": str(answer["lost"])}
    parts: dict[str, str] = {}
    given = {value.strip() for name, value in request.headers if name.lower() == "x-request-id"}
    for name, value in answer["headers"]:
        if name == "x-request-id":
            value = value if value in given else "the server's own"
        if name not in ("date", "content-length"):
            parts[f"header {name}"] = f"{parts[f'header {name}']}, {value}" if f"header {name}" in parts else value
    body = base64.b64decode(answer["body"])
    if request.is_grpc:
        if answer["reset"] is not None:
            parts["reset"] = str(answer["reset"])
        return parts | {"body": _messages(request, body)}
    parts["status"] = str(answer["status"])
    if parts.get("header content-encoding") == "gzip":
        body = gzip.decompress(body)
    return parts | {"body": _document(body)}


def _messages(request: Request, data: bytes) -> str:
    """Returns the messages in the DATA of an answer as text, with maps in the order of their keys."""
    found = []
    while len(data) >= 5:
        flag, length = data[0], int.from_bytes(data[1:5], "big")
        message, data = data[5 : 5 + length], data[5 + length :]
        if flag == 1:
            message = zlib.decompress(message, 47)
        text = message.hex()
        if request.path in ANSWERS:
            try:
                parsed = message_class(ANSWERS[request.path]).FromString(message)
                text = f"{len(message)} bytes: {parsed.SerializeToString(deterministic=True).hex()} {parsed}"
            except DecodeError:
                text = f"no message: {text}"
        found.append(f"flag {flag}: {text}")
    return "\n".join([*found, *([data.hex()] if data else [])])


def _document(body: bytes) -> str:
    """Returns a JSON document with its keys sorted and its numbers as they are spelled; other bytes as they are."""
    try:
        document = json.loads(body, object_pairs_hook=_Sorted, parse_float=_Spelled, parse_int=_Spelled)
        return f"{len(body)} bytes: {document!r}"
    except (ValueError, RecursionError):
        return body.decode("latin-1")


class _Spelled(str):
    """A number of a JSON document, as the document spells it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Sorted(list[tuple[str, Any]]):
    """The members of a JSON object, sorted by their keys; keys that occur twice stay."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(sorted(pairs, key=lambda pair: pair[0]))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in self) + "}"
