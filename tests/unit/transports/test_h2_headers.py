"""Header blocks, against the hpack package and against the examples of RFC 7541."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st
from service.transports.grpc.h2.frames import ConnectionFault, StreamFault
from service.transports.grpc.h2.header_blocks import header_block
from service.transports.grpc.h2.header_decoder import HeaderDecoder, HeadersTooLarge
from service.transports.grpc.h2.request_head import RequestHead, read_request_head

names = st.sampled_from([b":path", b":method", b"te", b"grpc-timeout", b"x-a", b"x-" + b"long" * 40])
values = st.one_of(st.sampled_from([b"", b"POST", b"trailers", b"5S"]), st.binary(max_size=300))
blocks = st.lists(st.tuples(names, values, st.booleans()), max_size=12)


@given(st.lists(st.tuples(blocks, st.booleans(), st.sampled_from([None, 0, 60, 300, 4096])), max_size=12))
def test_what_another_library_encodes_is_decoded(
    rounds: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    for headers, is_huffman, table_bytes in rounds:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = encoder.encode([(name, value, is_secret) for name, value, is_secret in headers], huffman=is_huffman)
        before = decoder.changes
        assert decoder.decode(block) == [(name, value) for name, value, _ in headers]
        if decoder.changes == before:
            assert decoder.decode(block) == [(name, value) for name, value, _ in headers], "it may be remembered"


@given(st.binary(max_size=60))
def test_rubbish_is_refused_where_another_library_refuses_it(block: bytes) -> None:
    decoder = HeaderDecoder(1 << 20)
    try:
        expected = [tuple(map(bytes, field)) for field in Decoder().decode(block, raw=True)]
    except Exception:
        with pytest.raises(ConnectionFault):
            decoder.decode(block)
    else:
        assert decoder.decode(block) == expected


def test_the_examples_of_the_rfc() -> None:
    # Appendix C.4: three requests on one connection, with Huffman codes and a table that grows.
    decoder = HeaderDecoder(1 << 14)
    first = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    assert decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == first
    assert decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf")) == [*first, (b"cache-control", b"no-cache")]
    last = [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
    ]
    block = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    assert decoder.decode(block) == [*last, (b"custom-key", b"custom-value")]


@pytest.mark.parametrize(
    "block",
    ["80", "be", "40", "400a", "0003612e", "7fffffffffff0f", "3fe21f", "8220", "0085ffffffffff00"],
    ids=[
        "index 0",
        "an index behind the table",
        "no name",
        "half a name",
        "no value",
        "a number without end",
        "a table that is too large",
        "resized behind a header",
        "a code of Huffman's that is none",
    ],
)
def test_blocks_that_are_none(block: str) -> None:
    with pytest.raises(ConnectionFault):
        HeaderDecoder(1 << 14).decode(bytes.fromhex(block))


def test_headers_over_the_limit_still_fill_the_table() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1000)
    with pytest.raises(HeadersTooLarge):
        decoder.decode(encoder.encode([("x-large", "v" * 2000), ("x-kept", "1")]))
    assert decoder.decode(encoder.encode([("x-kept", "1")])) == [(b"x-kept", b"1")]


def test_a_small_block_that_says_much_is_not_spread_out() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 14)
    decoder.decode(encoder.encode([("x-large", "v" * 4000)]))
    with pytest.raises(HeadersTooLarge):
        decoder.decode(b"\xbe" * 60_000)


@given(st.lists(st.tuples(st.text("abc-", min_size=1, max_size=300), st.text("abcé %", max_size=300)), max_size=5))
def test_answers_headers_are_read_by_another_library(headers: list[tuple[str, str]]) -> None:
    expected = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    decoder = Decoder(max_header_list_size=1 << 20)
    assert [tuple(map(bytes, field)) for field in decoder.decode(header_block(headers), raw=True)] == expected
    for status in (200, 404, 405, 415):
        answered = decoder.decode(header_block(headers, status), raw=True)
        assert [tuple(map(bytes, field)) for field in answered] == [(b":status", b"%d" % status), *expected]


GOOD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/p"), (b":authority", b"a")]


def test_a_request_head() -> None:
    more = [(b"te", b"trailers"), (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"7")]
    headers = {b"te": b"trailers", b"x-a": b"1,2", b"content-length": b"7"}
    assert read_request_head([*GOOD, *more]) == RequestHead("POST", "/p", headers, 7)


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[1:],
        [GOOD[0], *GOOD],
        [*GOOD[:2], (b":path", b"")],
        [*GOOD, (b":status", b"200")],
        [(b"x", b"1"), *GOOD],
        [*GOOD, (b"X-A", b"1")],
        [*GOOD, (b"", b"1")],
        [*GOOD, (b"x a", b"1")],
        [*GOOD, (b"x", b"1\r\ny: 2")],
        [*GOOD, (b"x", b"\0")],
        [*GOOD, (b"connection", b"close")],
        [*GOOD, (b"transfer-encoding", b"chunked")],
        [*GOOD, (b"te", b"gzip")],
        [*GOOD, (b"content-length", b"-1")],
    ],
)
def test_malformed_heads(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StreamFault):
        read_request_head(fields)
