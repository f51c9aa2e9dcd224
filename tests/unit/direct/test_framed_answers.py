"""An answer made as frames holds what the message does, as any client reads it, whatever its window takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from hypothesis import given
from hypothesis import strategies as st
from service.codecs.framed_answer import FRAME_BYTES, FRAME_HEAD_BYTES, Envelope, Framed
from service.direct import signature
from service.direct.answer_shape import FramedShapeWriter, ShapeWriter
from service.transports.grpc.h2.frame_run import FrameRun

from tests.unit.direct.test_direct import FLOAT, INT64, ONE, RAGGED, SEQUENCES, Both, models, request, tensor

__all__ = ["models"]

ENVELOPE = Envelope(b"\x88head", b"trailers")
STREAM = (1 << 31) - 5


def frames_of(data: bytes | memoryview) -> list[Frame]:
    """Returns frames as a library that shares nothing with the server's reads them."""
    frames, data = [], memoryview(data)
    while data:
        frame, length = Frame.parse_frame_header(data[:FRAME_HEAD_BYTES])
        frame.parse_body(data[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + length])
        frames.append(frame)
        data = data[FRAME_HEAD_BYTES + length :]
    return frames


def framed_answer(both: Both, data: bytes, *, as_content: bool = False) -> Framed | None:
    """Returns the frames of an answer."""
    directly = both.predict_directly
    begun = directly.begin(data, None, STREAM, as_content=as_content, envelope=ENVELOPE)
    answer = None if begun is None else directly.finish(begun)
    assert answer is None or isinstance(answer, tuple)
    return answer


def message_in(framed: Framed) -> bytes:
    """Returns the message of an answer whose frames are held against what they must be."""
    data, cut = framed
    first, *middle, last = frames_of(data)
    assert isinstance(first, HeadersFrame) and first.data == ENVELOPE.head_block
    assert set(first.flags) == {"END_HEADERS"}
    assert isinstance(last, HeadersFrame) and last.data == ENVELOPE.trailers
    assert set(last.flags) == {"END_HEADERS", "END_STREAM"}
    assert all(isinstance(frame, DataFrame) and not frame.flags for frame in middle)
    assert {frame.stream_id for frame in (first, *middle, last)} == {STREAM}
    assert all(0 < len(frame.data) <= FRAME_BYTES for frame in middle)
    ends = np.cumsum([FRAME_HEAD_BYTES + len(frame.data) for frame in (first, *middle)])
    assert cut.ends == tuple(ends.tolist())
    payload = b"".join(frame.data for frame in middle)
    assert cut.num_counted == len(payload)
    assert payload[:1] == b"\0" and int.from_bytes(payload[1:5], "big") == len(payload) - 5
    return payload[5:]


def all_features(rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Returns inputs for every feature of the policies model."""
    inputs = {name: tensor(random.integers(0, 3, rows), INT64, is_content=False) for name in ONE[1:]}
    for name in RAGGED[3:] + SEQUENCES:
        sizes = random.integers(0, 4, rows)
        splits = np.concatenate([[0], np.cumsum(sizes)])
        inputs[f"{name}__values"] = tensor(random.integers(0, 3, splits[-1]), INT64, is_content=True)
        inputs[f"{name}__row_splits"] = tensor(splits, INT64, is_content=False)
    return inputs


@pytest.mark.parametrize("rows", [1, 2, 100, 371, 372, 1000, 5000])
@pytest.mark.parametrize("as_content", [False, True])
def test_every_feature_is_in_them(models: dict[str, Both], rows: int, as_content: bool) -> None:
    both = models["policies"]
    inputs = all_features(rows, np.random.default_rng(rows))
    inputs["positive__weights"] = tensor(
        np.linspace(-1, 2, inputs["positive__values"].tensor_shape.dim[0].size), FLOAT, is_content=True
    )
    data = request("policies", "lookup", inputs)
    expected = both.direct(data, as_content)
    assert expected is not None and expected == both.general(data, as_content)
    framed = framed_answer(both, data, as_content=as_content)
    assert framed is not None and message_in(framed) == expected


# Rows of 8 bytes: about where frames end.
@pytest.mark.parametrize("rows", [*range(2030, 2060), 4080, 4090, 4096])
def test_wherever_a_frame_ends(models: dict[str, Both], rows: int) -> None:
    both = models["toy"]
    data = request("toy", "lookup", {"user": tensor(np.arange(rows) % 3, INT64, is_content=False)})
    framed = framed_answer(both, data)
    assert framed is not None and message_in(framed) == both.direct(data, False)


def test_what_the_message_is_refused_for_has_no_frames(models: dict[str, Both]) -> None:
    both = models["toy"]
    bad = request("toy", "lookup", {"user": tensor(np.array([0] * 5000 + [9]), INT64, is_content=False)})
    assert framed_answer(both, bad) is None


def test_a_row_that_fits_into_no_frame_is_left_whole() -> None:
    assert FramedShapeWriter.takes(FRAME_BYTES // 4)
    assert not FramedShapeWriter.takes(FRAME_BYTES // 4 + 1)
    widest = FramedShapeWriter(ENVELOPE, 3 * FRAME_BYTES)
    widest.floats(0, 3, FRAME_BYTES // 4)
    cut = widest.shape().cut
    assert cut is not None and np.diff(cut.ends).tolist() == [
        FRAME_HEAD_BYTES + size for size in (5, *[FRAME_BYTES] * 3)
    ]
    width = FRAME_BYTES // 4 + 1
    answers = (("wide", (width,), ((0, width),)),)
    layout = signature.Layout(np.zeros((1, 30), np.int64), (("wide", (width,)),), FRAME_BYTES + 4, answers)
    assert layout.lay_out(2, b"", as_content=False, envelope=ENVELOPE).cut is None


@given(
    st.lists(st.integers(1, 6000), min_size=1, max_size=6),
    st.lists(st.one_of(st.integers(1, 30), st.integers(16_000, 40_000)), max_size=60),
)
def test_whatever_windows_take(sizes: list[int], windows: list[int]) -> None:
    writer, message = FramedShapeWriter(ENVELOPE, sum(sizes)), b""
    for i, size in enumerate(sizes):
        message += bytes([i]) * size
        writer.text(bytes([i]) * size)
    shape = writer.shape()
    assert shape.cut is not None
    data = bytearray(shape.size)
    # Text alone, so that nothing needs to be looked up.
    num_pieces, pieces = int(shape.numbers[1]), shape.numbers[4:]
    for at, length, to in pieces[: 3 * num_pieces].reshape(-1, 3).tolist():
        data[to : to + length] = shape.template[at : at + length]
    for mark in pieces[3 * num_pieces :].tolist():
        data[mark : mark + 4] = b"\0\0\0\1"
    run, sent, num_counted = FrameRun((bytes(data), shape.cut)), b"", 0
    for most in [*windows, *[FRAME_BYTES] * 10]:
        if run.is_empty:
            break
        frames, size = run.take(1, most)
        assert 0 < size <= most
        sent += b"".join(frames)
        num_counted += size
    assert run.is_empty and num_counted == shape.cut.num_counted
    assert b"".join(frame.data for frame in frames_of(sent))[5:] == message


def test_shapes_that_are_remembered_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "_MAX_PARTS", 100)
    shapes = signature.Shapes()
    writer = ShapeWriter()
    for i in range(30):
        writer.place(0, 1, 4 * i, 1)
    shape = writer.shape()
    for rows in range(1000):
        shapes.keep((rows, False, None), shape)
        assert shapes.get((rows, False, None)) is shape
        assert sum(shapes.get((other, False, None)) is not None for other in range(rows + 1)) <= 4


def test_shapes_take_as_much_memory_as_is_said() -> None:
    layout = signature.Layout(np.zeros((1, 30), np.int64), (("item", (64,)),), 256)
    tracemalloc.start()
    try:
        kept = [layout.lay_out(rows, b"", as_content=False, envelope=ENVELOPE) for rows in range(9_000, 9_050)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 150 frames each, of some 300 bytes: the limit is then 10 MB.
    assert used / sum(shape.num_parts for shape in kept) < 300
