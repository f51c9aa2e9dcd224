"""Decodes keys of text files, and reads numbers and integers as text files write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from model_export.errors import ExportError
from model_export.spec.features import line_fault

# What to do with a key that is not UTF-8: refuse the file, change the key's bytes as bytes.decode() does, or leave the
# row out ("skip", which also leaves out keys that no vocabulary can hold).
Errors = Literal["strict", "replace", "ignore", "skip"]
KeysChoice = Literal["none", "first"]
KeyDtypeChoice = Literal["int64", "string"]

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INTEGER = re.compile(r"0|-?[1-9]\d*")
_INT64 = range(-(2**63), 2**63)


def option(options: Mapping[str, str], name: str, choices: object, what: str) -> str | None:
    """Returns the value of an address's option, or None; raises ExportError if it is none of the Literal `choices`."""
    value = options.get(name)
    if value is not None and value not in get_args(choices):
        raise ExportError(f"{what}: {name}={value}; expected {' or '.join(get_args(choices))}")
    return value


def decoded(key: bytes, errors: str, where: str) -> str | None:
    """Decodes a key by the option errors=; None means that its row is left out. Raises ExportError.

    >>> decoded(b"abc\\xe5", "replace", "line 3")
    'abc\ufffd'
    """
    try:
        text = key.decode("utf-8", "strict" if errors == "skip" else errors)
        return None if errors == "skip" and line_fault(text) else text
    except UnicodeDecodeError as error:
        if errors == "skip":
            return None
        raise ExportError(
            f"{where}: the key {key[:60]!r} is not UTF-8; add ?errors=replace or ?errors=ignore to change its bytes, "
            "or ?errors=skip to leave the row out"
        ) from error


def is_number(text: bytes) -> bool:
    """Says whether a cell of a text file is a number in decimal notation.

    >>> [is_number(text) for text in (b"-1.5e3", b"7", b"nan", b"1_0", b"x")]
    [True, True, True, False, False]
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def is_int64(text: str) -> bool:
    """Says whether a text is an int64 as programs print it, so that no other text means the same key.

    >>> [is_int64(text) for text in ("-7", "007", "9223372036854775808")]
    [True, False, False]
    """
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT64
