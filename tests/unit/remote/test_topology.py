"""Addresses and topologies of clusters."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import redis

from service.remote import topology
from service.remote.address import StoreAddress, remote_tables, without_password
from service.remote.layout import NUM_SLOTS
from service.remote.topology import Command, Node, Primaries, Reason, Topology, Unreachable


def test_credentials_stand_before_the_nodes_or_in_options(tmp_path: Path) -> None:
    address = StoreAddress.parse("valkeys://me%40x:p%3B%2Fw@a:1,b?timeout_ms=5")
    assert (address.nodes, address.user, address.password) == ((("a", 1), ("b", 6379)), "me@x", "p;/w")
    assert StoreAddress.parse("valkey://:only@a").password == "only"
    file = tmp_path / "password"
    file.write_text("from file\nsecond line\n")
    address = StoreAddress.parse(f"valkey://me@a?password_file={file}")
    assert (address.user, address.password) == ("me", "from file")
    file.write_text("changed")
    assert address.password == "changed"
    file.write_text("")
    with pytest.raises(OSError, match="is empty"):
        _ = address.password
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(OSError, match="is not UTF-8 text"):
        _ = address.password
    with pytest.raises(OSError, match="it is a device"):
        _ = StoreAddress.parse("valkey://me@a?password_file=/dev/null").password
    file.write_text("")
    # Another program may empty the file before it writes the new password, so the reader waits a moment.
    writing = threading.Timer(0.03, file.write_text, ["later"])
    writing.start()
    assert address.password == "later"
    writing.join()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("valkey://me:secret@a?user=you", "gives a user before the @ and as an option"),
        ("valkey://me:secret@a?password_file=/f", "gives a password and a password_file"),
        ("valkey://me:secret@a:b", "'a:b' is not HOST:PORT"),
        ("valkey://me:secret@a?timeout_ms=0", "timeout_ms is '0'"),
        ("valkey://me:secret@a?hedge_percent=101", "hedge_percent is '101', expected a number from 0 to 100"),
        ("valkey://me:secret@a?on_unavailable=old", "on_unavailable is 'old', expected one of"),
        ("valkey://me:secret@a?x=1", "option 'x' is none of"),
        ("mysql://me:secret@a", "is not valkey://HOST"),
    ],
)
def test_no_error_and_no_description_shows_a_password(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as told:
        StoreAddress.parse(text)
    assert "secret" not in str(told.value)


def test_options_have_defaults() -> None:
    plain = StoreAddress.parse("valkey://a")
    assert (plain.on_unavailable, plain.timeout_s, plain.node_timeout_s, plain.hedge_percent) == ("error", 1.0, 0.2, 5)
    chosen = StoreAddress.parse("valkey://a?on_unavailable=stale&hedge_percent=0&timeout_ms=1&node_timeout_ms=600000")
    assert (chosen.on_unavailable, chosen.timeout_s, chosen.node_timeout_s) == ("stale", 0.001, 600.0)
    assert chosen.hedge_percent == 0


def test_passwords_are_hidden_in_texts() -> None:
    text = "user=valkey://me:secret@a:1,b?timeout_ms=5;m/film=rediss://:more@c"
    assert without_password(text) == "user=valkey://(hidden)@a:1,b?timeout_ms=5;m/film=rediss://(hidden)@c"
    for address in remote_tables(text).values():
        assert "secret" not in f"{address!r} {address}" and "more" not in f"{address!r} {address}"
    with pytest.raises(ValueError, match="is not TABLE=ADDRESS") as told:
        remote_tables("valkey://me:secret@a")
    assert "secret" not in str(told.value)


def test_a_time_limit_replaces_no_refusal() -> None:
    why = Reason("no node was asked")
    why.note(redis.TimeoutError("Timeout connecting to server"), ("a", 1))
    assert why.text == "a:1: Timeout connecting to server"
    why.note(redis.AuthenticationError("WRONGPASS"), ("a", 1))
    for late in (redis.TimeoutError("late"), TimeoutError("late"), Unreachable(Reason("late"))):
        why.note(late)
        assert why.text == "a:1: WRONGPASS"
    outer = Reason("no node was asked")
    outer.note(Unreachable(why))
    outer.note(TimeoutError("late"))
    assert outer.text == "a:1: WRONGPASS"
    outer.note(OSError("refused"))
    assert outer.text == "refused"


def test_the_deadline_of_a_caller_says_nothing_about_a_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node = ("127.0.0.1", silent.getsockname()[1])
        address = StoreAddress.parse(f"valkey://{node[0]}:{node[1]}?node_timeout_ms=300")
        asked = Topology(address)
        for left_s, is_down in ((0.02, False), (0.5, True)):
            with pytest.raises(Unreachable):
                asked.refresh(time.monotonic() + left_s)
            assert asked.is_down(node) == is_down
    known = Mock(spec=Topology)
    known.nodes.return_value, known.primary.return_value, known.num_replicas.return_value = (node,), node, 1
    with pytest.raises(Unreachable, match="timed out"):
        Primaries(address, known).read([Command(0, ("GET", "key"))], time.monotonic() - 1)
    known.failed.assert_not_called()


def test_a_node_that_closes_a_connection_while_it_is_asked_for_the_map_has_not_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            server.accept()[0].close()
            with server.accept()[0] as reader:
                while received := reader.recv(1 << 16):
                    reader.sendall(b"-ERR This instance has cluster support disabled\r\n" * received.count(b"*"))

        answering = threading.Thread(target=answer)
        answering.start()
        node = ("127.0.0.1", server.getsockname()[1])
        asked = Topology(StoreAddress.parse(f"valkey://{node[0]}:{node[1]}"))
        asked.refresh(time.monotonic() + 60)
        assert asked.nodes(0) == (node,) and not asked.is_down(node)
        answering.join()


@pytest.mark.parametrize(
    ("replicas", "replies", "has_copies"),
    [
        (0, [1], True),
        (2, [1, 2], True),
        (2, [1, 1], False),
        (2, [1, redis.ResponseError("UNBLOCKED")], False),
        # Another node is the primary of the slot by now.
        (None, [1], False),
    ],
)
def test_a_write_is_safe_once_all_replicas_of_its_primary_have_it(
    monkeypatch: pytest.MonkeyPatch, replicas: int | None, replies: list[Any], has_copies: bool
) -> None:
    known, pipe = Mock(spec=Topology), MagicMock()
    known.primary.return_value, known.num_replicas.return_value = ("a", 1), replicas
    pipe.__enter__.return_value.execute.return_value = replies
    monkeypatch.setattr(Primaries, "_client", lambda *_: Mock(pipeline=lambda transaction: pipe))
    primaries = Primaries(StoreAddress.parse("valkey://a:1"), known)
    assert primaries.write([Command(0, ("SET", "key", "row"))], time.monotonic() + 1) == has_copies


def test_a_node_that_names_another_one_is_asked_for_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    # Node b took over from a, which knows it. Node x, the first in the map, does not.
    x, a, b = ("x", 1), ("a", 1), ("b", 1)
    slots = (0, *[1] * (NUM_SLOTS - 1))
    old = topology._Told(topology._Map(((x,), (a, b)), (x, a), slots), 0, True)
    new = topology._Told(topology._Map(((x,), (b, a)), (x, b), slots), 1, True)

    def ask(_: Primaries, kind: tuple[Node, bool, bool], *more: Any) -> tuple[list[Any], bool]:
        return [b"row" if kind[0] == b else redis.exceptions.MovedError("5 b:1")], True

    monkeypatch.setattr(topology, "_ask_for_map", lambda address, node, timeout_s: new if node == a else old)
    monkeypatch.setattr(topology, "_REFRESH_S", 0.0)
    monkeypatch.setattr(Primaries, "_ask", ask)
    address = StoreAddress.parse("valkey://x:1")
    primaries = Primaries(address, Topology(address))
    assert primaries.run([Command(5, ("GET", "key"))], time.monotonic() + 1) == [b"row"]
