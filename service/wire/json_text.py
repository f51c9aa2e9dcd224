"""Writes JSON values as TensorFlow Serving's error texts show them, and finds the fault that its parser would report.

The code is used for errors only, so it need not be fast.

Source: tensorflow_serving/util/json_tensor.cc (9d981c5) JsonValueToDebugString; rapidjson's prettywriter.h, reader.h
(iterative parsing) and error/en.h.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, NoReturn

_MAX_SHOWN_BYTES = 256
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TYPE_NAMES: dict[type, str] = {dict: "Object", list: "Array", str: "String"}
_SPECIAL = re.compile(r'[\x00-\x1f"\\]')
# Range of the decimal point's position in which rapidjson writes a number without an exponent.
_MAX_POINT, _MIN_POINT = 21, -6
_WHITESPACE = re.compile(rb"[ \t\r\n]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.([0-9]+)?)?([eE][+-]?([0-9]+)?)?")
# Pattern of JSON array elements that are surely valid: strings without escapes, numbers that are not too large, true,
# false, null.
_ELEMENTS = re.compile(
    rb'(?:[ \t\r\n]*,[ \t\r\n]*(?:-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?|"[^"\\\x00-\x1f]*"|true|false|null)'
    rb"(?=[ \t\r\n]*[,\]])){1,1000}"
)
# Scanning this many bytes of plain array elements takes as long as scanning one token of JSON, so they count as one
# token against the limit _MAX_TOKENS.
_ELEMENT_BYTES = 16
_OPENING, _CLOSING = re.compile(rb"\[+"), re.compile(rb"\]+")
_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]*')
_MAX_TOKENS = 250_000
_HEX = re.compile(rb"[0-9a-fA-F]{4}")


def json_type(value: Any) -> str:
    """Returns rapidjson's name for the type of a JSON value.

    >>> json_type(True), json_type(1.5), json_type(None)
    ('True', 'Number', 'Null')
    """
    if value is None:
        return "Null"
    if isinstance(value, bool):
        return str(value)
    return _TYPE_NAMES.get(type(value), "Number")


def shown(value: Any) -> str:
    """Returns a JSON value as indented text, arrays on one line; the text ends at the first token after 256 bytes.

    >>> print(shown({"a": [1, "x"], "b": 2.0}))
    {
        "a": [1, "x"],
        "b": 2.0
    }
    """
    writer = _Writer()
    try:
        writer.write(value, 0)
    except _Full:
        pass
    return "".join(writer.pieces)


class _Full(Exception):
    pass


class _Writer:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._num_bytes = 0
        # The text between two tokens (such as ", "), which is written only if another token follows.
        self._separator = ""

    def write(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self._token("{")
            for i, (key, item) in enumerate(value.items()):
                self._token(("," if i else "") + "\n" + "    " * (depth + 1) + _quoted(key))
                self._separator = ": "
                self.write(item, depth + 1)
            self._token(("\n" + "    " * depth if value else "") + "}")
        elif isinstance(value, list):
            self._token("[")
            for i, item in enumerate(value):
                self._separator = ", " if i else ""
                self.write(item, depth + 1)
            self._token("]")
        elif isinstance(value, str):
            self._token(_quoted(value))
        elif isinstance(value, float):
            self._token(_float(value))
        else:
            self._token(_scalar(value))

    def _token(self, text: str) -> None:
        if self._num_bytes >= _MAX_SHOWN_BYTES:
            raise _Full
        self.pieces += [self._separator, text]
        self._num_bytes += len((self._separator + text).encode("utf-8", "replace"))
        self._separator = ""


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    # Error texts show integers of more than 64 bits as "...": rapidjson does not read them as integers, and Python
    # refuses to write very long ones.
    return str(value) if -(2**64) < value < 2**64 else "..."


def _float(number: float) -> str:
    if not math.isfinite(number):
        # An error text quotes a JSON value only up to its first NaN or infinity, as TensorFlow Serving's does, because
        # rapidjson's writer stops there.
        raise _Full
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    point = len(digits) + exponent
    shown_digits = "".join(map(str, digits))
    minus = "-" * sign
    if not number:
        return minus + "0.0"
    if exponent >= 0 and point <= _MAX_POINT:
        return f"{minus}{shown_digits}{'0' * exponent}.0"
    if 0 < point <= _MAX_POINT:
        return f"{minus}{shown_digits[:point]}.{shown_digits[point:]}"
    if _MIN_POINT < point <= 0:
        return f"{minus}0.{'0' * -point}{shown_digits}"
    mantissa = shown_digits if len(digits) == 1 else f"{shown_digits[0]}.{shown_digits[1:]}"
    return f"{minus}{mantissa}e{point - 1}"


def _quoted(text: str) -> str:
    return '"' + _SPECIAL.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}"), text) + '"'


def parse_fault(text: bytes) -> str:
    """Returns rapidjson's error text for a JSON text with a fault, with the fault's offset; "" if the first _MAX_TOKENS
    tokens have none.

    >>> parse_fault(b'{"a": x}'), parse_fault(b"{1")
    ('Invalid value. at offset: 6', 'Missing a name for object member. at offset: 1')
    """
    try:
        _Scanner(text).scan()
    except _Fault as fault:
        return f"{fault.args[0]} at offset: {fault.args[1]}"
    return ""


class _Fault(Exception):
    pass


class _Scanner:
    """A scanner of JSON text that finds the first fault; it does not recurse, so that deep nesting is safe."""

    def __init__(self, text: bytes) -> None:
        # The JSON text is cut at its first zero byte, because rapidjson reads only up to a zero byte.
        self._text = text.partition(b"\0")[0]
        self._at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        # The closing brackets ("]" or "}") of the arrays and objects that are open at the scanner's position, innermost
        # last.
        self._stack = bytearray()
        self._tokens_left = _MAX_TOKENS

    def scan(self) -> None:
        if self._peek() in (b"", b",", b":", b"]", b"}"):
            self._fail("The document is empty.")
        while self._tokens_left > 0:
            self._tokens_left -= 1
            if self._value() and self._close():
                return

    def _value(self) -> bool:
        """Scans one value, or the opening bracket of an array or object; returns whether the value is complete."""
        token = self._peek()
        if token == b"[":
            # Several "[" in a row are scanned at once; only the array that the last "[" opens can be empty.
            length = _OPENING.match(self._text, self._at).end() - self._at  # type: ignore[union-attr]
            self._at += length
            self._stack += b"]" * (length - 1)
        elif token == b"{":
            self._at += 1
        else:
            self._scalar(token)
            return True
        closing = b"]" if token == b"[" else b"}"
        if self._peek() == closing:
            self._at += 1
            return True
        self._stack += closing
        if token == b"{":
            self._name()
        return False

    def _close(self) -> bool:
        """Scans JSON commas and closing brackets up to the next value; returns whether the document has ended."""
        while self._stack:
            is_object = self._stack.endswith(b"}")
            if not is_object:
                self._pass_elements()
            token = self._peek()
            if token == b"]" and not is_object:
                self._pass_closing()
                continue
            if token == b"}" and is_object:
                self._at += 1
                self._stack.pop()
                continue
            if token != b",":
                kind = "} after an object member" if is_object else "] after an array element"
                self._fail(f"Missing a comma or {kind}.")
            self._at += 1
            if is_object:
                self._name()
            return False
        return True

    def _pass_elements(self) -> None:
        """Scans simple elements of a JSON array, such as short numbers, many at a time with one pattern."""
        while self._tokens_left > 0 and (found := _ELEMENTS.match(self._text, self._at)):
            self._tokens_left -= (found.end() - self._at) // _ELEMENT_BYTES
            self._at = found.end()

    def _pass_closing(self) -> None:
        length = _CLOSING.match(self._text, self._at).end() - self._at  # type: ignore[union-attr]
        # The text may have more "]" in a row than there are open arrays within the innermost object. Only as many are
        # scanned here as arrays are open.
        length = min(length, len(self._stack) - len(self._stack.rstrip(b"]")))
        self._at += length
        del self._stack[-length:]

    def _name(self) -> None:
        if self._peek() != b'"':
            self._fail("Missing a name for object member.")
        self._string()
        if self._peek() != b":":
            self._fail("Missing a colon after a name of object member.")
        self._at += 1

    def _scalar(self, token: bytes) -> None:
        if token == b'"':
            self._string()
            return
        body = self._text
        literal = {b"t": b"true", b"f": b"false", b"n": b"null"}.get(token)
        if literal is not None:
            for i, char in enumerate(literal):
                if body[self._at + i : self._at + i + 1] != bytes((char,)):
                    self._at += i
                    self._fail("Invalid value.")
            self._at += len(literal)
            return
        sign = body[self._at : self._at + 1] == b"-"
        for word in (b"NaN", b"Infinity", b"Inf"):
            if body.startswith(word, self._at + sign):
                self._at += len(word) + sign
                return
        self._number()

    def _number(self) -> None:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            # For an invalid number that begins with "-", rapidjson reports the offset behind the "-".
            self._at += self._text[self._at : self._at + 1] == b"-"
            self._fail("Invalid value.")
        if found[1] and not found[2]:
            self._at = found.end(1)
            self._fail("Miss fraction part in number.")
        if found[3] and not found[4]:
            self._at = found.end(3)
            self._fail("Miss exponent in number.")
        if math.isinf(float(found[0])):
            self._fail("Number too big to be stored in double.")
        self._at = found.end()

    def _string(self) -> None:
        self._at += 1
        while True:
            self._at = _PLAIN_TEXT.match(self._text, self._at).end()  # type: ignore[union-attr]
            byte = self._text[self._at : self._at + 1]
            if byte == b'"':
                self._at += 1
                return
            if not byte:
                self._fail("Missing a closing quotation mark in string.")
            if byte != b"\\":
                self._fail("Invalid encoding in string.")
            self._escape()

    def _escape(self) -> None:
        start = self._at
        kind = self._text[start + 1 : start + 2]
        if kind == b"u":
            self._at += 6
            code = self._hex(start + 2, start)
            if 0xD800 <= code <= 0xDFFF:
                # An escaped high surrogate must be followed by an escaped low surrogate; both together are one
                # character.
                if code > 0xDBFF or self._text[start + 6 : start + 8] != b"\\u":
                    self._at = start
                    self._fail("The surrogate pair in string is invalid.")
                if not 0xDC00 <= self._hex(start + 8, start) <= 0xDFFF:
                    self._at = start
                    self._fail("The surrogate pair in string is invalid.")
                self._at += 6
            return
        if not kind or kind not in b'"\\/bfnrt':
            self._fail("Invalid escape character in string.")
        self._at += 2

    def _hex(self, at: int, start: int) -> int:
        if _HEX.match(self._text, at) is None:
            self._at = start
            self._fail("Incorrect hex digit after \\u escape in string.")
        return int(self._text[at : at + 4], 16)

    def _peek(self) -> bytes:
        self._at = _WHITESPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def _fail(self, problem: str) -> NoReturn:
        raise _Fault(problem, self._at)
