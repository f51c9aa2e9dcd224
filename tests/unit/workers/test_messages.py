"""Messages survive any cut of the stream, and what is none is noticed."""

from __future__ import annotations

import pytest
from service.workers.messages import BadFrame, Frames, encode


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_arrive_whole_however_the_stream_is_cut(size: int) -> None:
    stream = encode("hello", settings={"host": "ü"}) + encode("scrape", id=2) + encode("counts", text="x" * 300)
    frames = Frames()
    found = [m for at in range(0, len(stream), size) for m in frames.feed(stream[at : at + size])]
    assert found == [
        {"kind": "hello", "settings": {"host": "ü"}},
        {"kind": "scrape", "id": 2},
        {"kind": "counts", "text": "x" * 300},
    ]


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\0\0\0\2[]", b"\0\0\0\2{}", b'\0\0\0\x0a{"kind":1}'], ids=repr
)
def test_what_is_no_message_is_noticed(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames().feed(data))
