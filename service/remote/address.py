"""The address of a Valkey or Redis cluster, as flags and commands name it.

>>> StoreAddress.parse("valkey://a:7000,b?on_unavailable=default_row").nodes
(('a', 7000), ('b', 6379))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import parse_qsl, urlsplit

OnUnavailable = Literal["error", "default_row"]

_DEFAULT_PORT = 6379
_PLAIN, _TLS = ("valkey", "redis"), ("valkeys", "rediss")
_OPTIONS = ("user", "password_file", "ca_file", "on_unavailable", "timeout_ms", "node_timeout_ms")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A cluster, or a single server, and how it is asked.

    nodes: host and port of some of its nodes; the others are found by asking these.
    has_tls, ca_file: TLS, and the authorities that its certificates are held against; "": the system's.
    user, password_file: of an ACL user; the file's first line is the password. "": no authentication.
    on_unavailable: what an id reads whose row can not be read.
    timeout_s: for all rows of one read. node_timeout_s: for one node, before another is asked.
    """

    nodes: tuple[tuple[str, int], ...]
    has_tls: bool = False
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    on_unavailable: OnUnavailable = "error"
    timeout_s: float = 1.0
    node_timeout_s: float = 0.2

    @staticmethod
    def parse(text: str) -> StoreAddress:
        """Reads valkey://host:port,host:port?option=value&...; raises ValueError with what is wrong.

        valkeys:// asks for TLS; redis:// and rediss:// mean the same as valkey:// and valkeys://.
        """
        url = urlsplit(text)
        if url.scheme not in (*_PLAIN, *_TLS) or not url.netloc or url.path.strip("/") or url.fragment:
            raise ValueError(f"{text!r} is not valkey://HOST:PORT,HOST:PORT?OPTION=VALUE")
        if "@" in url.netloc:
            raise ValueError(
                f"{url.scheme}://...@{url.netloc.rpartition('@')[2]}: a password in an address is seen by all who "
                "list processes; give user= and password_file= as options"
            )
        pairs = parse_qsl(url.query, keep_blank_values=True)
        options = dict(pairs)
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(f"{text!r}: option {name!r} is none of {', '.join(_OPTIONS)}")
        if len(options) != len(pairs):
            raise ValueError(f"{text!r} gives an option twice")
        rule = options.get("on_unavailable", "error")
        if rule not in get_args(OnUnavailable):
            raise ValueError(f"{text!r}: on_unavailable is {rule!r}, expected one of {get_args(OnUnavailable)}")
        return StoreAddress(
            tuple(_node(part, text) for part in url.netloc.split(",")),
            url.scheme in _TLS,
            options.get("user", ""),
            options.get("password_file", ""),
            options.get("ca_file", ""),
            "default_row" if rule == "default_row" else "error",
            _seconds(options, "timeout_ms", 1000, text),
            _seconds(options, "node_timeout_ms", 200, text),
        )

    @property
    def password(self) -> str:
        """Returns the password, read anew from its file; "" without one. Raises OSError."""
        return Path(self.password_file).read_text().partition("\n")[0] if self.password_file else ""

    def __str__(self) -> str:
        """Returns the nodes, for messages."""
        return ",".join(f"{host}:{port}" for host, port in self.nodes)


def remote_tables(text: str) -> dict[str, StoreAddress]:
    """Reads TABLE=ADDRESS;MODEL/TABLE=ADDRESS, as --remote_tables has it; raises ValueError with what is wrong.

    >>> list(remote_tables("user=valkey://a:1; m/item=valkey://b"))
    ['user', 'm/item']
    """
    found: dict[str, StoreAddress] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, address = part.partition("=")
        if not (name and separator):
            raise ValueError(f"{part!r} is not TABLE=ADDRESS or MODEL/TABLE=ADDRESS")
        if name in found:
            raise ValueError(f"table {name!r} has two addresses")
        found[name] = StoreAddress.parse(address)
    return found


def _node(text: str, whole: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not separator:
        host, port = text, str(_DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{whole!r}: {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _seconds(options: Mapping[str, str], name: str, default: int, whole: str) -> float:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 600_000):
        raise ValueError(f"{whole!r}: {name} is {text!r}, expected milliseconds from 1 to 600000")
    return int(text) / 1000
