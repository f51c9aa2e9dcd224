"""A message that is there as a whole is found, however it is cut into frames, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, PingFrame
from hypothesis import given
from hypothesis import strategies as st
from service.transports.grpc.h2.whole_requests import whole_message

from tests.unit.transports.h2_client import framed

STREAM, MOST = 7, 200_000


def frames(payload: bytes, sizes: list[int], *, stream_id: int = STREAM, is_end: bool = True) -> bytes:
    """Returns DATA frames of these sizes, what is left in one more, as a library that shares nothing writes them."""
    written, cuts = b"", []
    for size in sizes:
        cuts.append(payload[:size])
        payload = payload[size:]
    cuts.append(payload)
    for i, cut in enumerate(cuts):
        flags = ["END_STREAM"] if is_end and i == len(cuts) - 1 else []
        written += DataFrame(stream_id, cut, flags=flags).serialize()
    return written


def found(data: bytes, at: int = 0) -> tuple[bytes, int] | None:
    """Returns what is found."""
    return whole_message(data, at, STREAM, MOST)


@given(st.integers(0, 70_000), st.lists(st.integers(0, 16384), max_size=4), st.binary(max_size=30))
def test_a_message_in_any_frames(size: int, sizes: list[int], behind: bytes) -> None:
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    rest = len(framed(message)) - sum(sizes)
    sizes = sizes + [16384] * (max(rest, 0) // 16384)
    data = frames(framed(message), sizes)
    answer = found(b"before" + data + behind, 6)
    if sizes and sizes[0] < 5:
        # Its prefix is cut: nobody does that.
        assert answer is None
    else:
        assert answer == (message, 6 + len(data))
    for end in {0, 8, 9, 13, 14, len(data) // 2, len(data) - 1}:
        assert found(data[: min(end, len(data) - 1)]) is None


WHOLE = framed(b"x" * 100)


@pytest.mark.parametrize(
    "data",
    [
        frames(WHOLE, [50], is_end=False),
        frames(WHOLE, [], is_end=False),
        frames(WHOLE + b"y", [50]),
        frames(WHOLE + b"y", []),
        frames(WHOLE[:-1], [50]),
        frames(WHOLE[:-1], []),
        frames(WHOLE + WHOLE, [len(WHOLE)]),
        frames(WHOLE, [50], stream_id=9),
        frames(WHOLE[:50], [], is_end=False) + frames(WHOLE[50:], [], stream_id=9),
        frames(WHOLE[:50], [], is_end=False) + PingFrame(0, b"12345678").serialize() + frames(WHOLE[50:], []),
        frames(b"\1" + WHOLE[1:], [50]),
        frames(b"\1" + WHOLE[1:], []),
        DataFrame(STREAM, WHOLE, pad_length=3, flags=["PADDED", "END_STREAM"]).serialize(),
        frames(WHOLE[:50], [], is_end=False)
        + DataFrame(STREAM, WHOLE[50:], pad_length=3, flags=["PADDED", "END_STREAM"]).serialize(),
        frames(framed(b"x" * 20_000), []),
        frames(framed(b"x" * 40_000), [100, 20_000]),
        frames(framed(b"x" * (MOST + 1)), [16384] * 12),
        b"",
    ],
    ids=[
        *("no end", "no end of one", "more", "more in one", "less", "less in one", "two messages", "another stream"),
        *("two streams", "a ping between", "compressed", "compressed in one", "padded", "padded behind"),
        *("a large frame", "a large frame behind", "a large message", "nothing"),
    ],
)
def test_what_is_left_to_who_looks_closer(data: bytes) -> None:
    assert found(data) is None


def test_the_largest() -> None:
    data = frames(framed(b"x" * MOST), [16384] * 12)
    assert found(data) == (b"x" * MOST, len(data))
