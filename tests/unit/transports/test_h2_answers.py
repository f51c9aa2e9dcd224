"""A whole answer's frames hold it as any client reads them, however small frames must be."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from service.transports.grpc.h2.answers import answer_frames
from service.transports.grpc.h2.metadata import OK_TRAILERS

from tests.unit.transports.h2_client import framed


def frames_of(data: bytes) -> list[Frame]:
    """Returns frames as a library that shares nothing with the server's reads them."""
    frames = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        frames.append(frame)
        data = data[9 + length :]
    return frames


# With 20: the prefix of five bytes and the message fit, just do, and do not, once and several times.
@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 34, 35, 36, 55, 100])
@pytest.mark.parametrize("frame_bytes", [20, 16384])
def test_frames_hold_the_answer(size: int, frame_bytes: int) -> None:
    answer = bytes(range(size))
    first, *data, last = frames_of(b"".join(answer_frames(7, b"\x88", answer, frame_bytes)))
    assert isinstance(first, HeadersFrame) and first.data == b"\x88" and set(first.flags) == {"END_HEADERS"}
    assert isinstance(last, HeadersFrame) and last.data == OK_TRAILERS
    assert set(last.flags) == {"END_HEADERS", "END_STREAM"}
    assert all(isinstance(frame, DataFrame) and not frame.flags for frame in data)
    assert b"".join(frame.data for frame in data) == framed(answer)
    # None is empty, and only the last is not full.
    assert [len(frame.data) for frame in data[:-1]] == [frame_bytes] * (len(data) - 1)
    assert 0 < len(data[-1].data) <= frame_bytes
    assert {frame.stream_id for frame in (first, *data, last)} == {7}
