"""Parses the address of a Valkey or Redis cluster, as --remote_tables and commands give it.

>>> StoreAddress.parse("valkey://a:7000,b?on_unavailable=default_row").nodes
(('a', 7000), ('b', 6379))
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from service.artifact.files import read_plain_file

OnUnavailable = Literal["error", "default_row", "stale"]

_DEFAULT_PORT = 6379
# Number of times that an empty password_file is read before an error, and the pause between two reads in seconds.
_READS = 10
_READ_AGAIN_S = 0.01
_PLAIN, _TLS = ("valkey", "redis"), ("valkeys", "rediss")
# Pattern that finds a user name and password in the text of an address.
_CREDENTIALS = re.compile(r"(?<=://)[^/?#;]*@")
_OPTIONS = ("user", "password_file", "ca_file", "on_unavailable", "timeout_ms", "node_timeout_ms", "hedge_percent")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a cluster or of a single Valkey or Redis server, with the options of the connection.

    nodes: host and port of some of its nodes; these tell the addresses of all others.
    has_tls: connections use TLS. ca_file: the authorities that sign nodes' certificates; "": the system's authorities.
    user: name of an ACL user; "" is the default user. password_file: file whose first line is the password.
      own_password: the password that stands in the address. Without both there is no authentication.
    on_unavailable: an id whose row can not be read fails the request ("error"), reads the default row, or reads the row
      that the cache has ("stale").
    timeout_s: longest time of one read of rows. node_timeout_s: longest wait for a node, before another is asked.
    hedge_percent: of a hundred reads of nodes, how many may be asked of a second node because the first is slow.
    """

    nodes: tuple[tuple[str, int], ...]
    has_tls: bool = False
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    on_unavailable: OnUnavailable = "error"
    timeout_s: float = 1.0
    node_timeout_s: float = 0.2
    hedge_percent: int = 5
    own_password: str = field(default="", repr=False)

    @staticmethod
    def parse(text: str) -> StoreAddress:
        """Parses an address valkey://[user:password@]host:port,host:port?option=value&...; raises ValueError.

        valkeys:// asks for TLS; redis:// and rediss:// mean the same as valkey:// and valkeys://. Characters of user
        and password may be escaped as %XX; @, /, ?, # and ; must be.
        """
        shown = without_password(text)
        url = urlsplit(text)
        if url.scheme not in (*_PLAIN, *_TLS) or not url.netloc or url.path.strip("/") or url.fragment:
            raise ValueError(f"{shown!r} is not valkey://HOST:PORT,HOST:PORT?OPTION=VALUE")
        credentials, has_user, nodes = url.netloc.rpartition("@")
        user, has_password, password = (unquote(part) for part in credentials.partition(":"))
        pairs = parse_qsl(url.query, keep_blank_values=True)
        options = dict(pairs)
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(f"{shown!r}: option {name!r} is none of {', '.join(_OPTIONS)}")
        if len(options) != len(pairs):
            raise ValueError(f"{shown!r} gives an option twice")
        if has_user and "user" in options:
            raise ValueError(f"{shown!r} gives a user before the @ and as an option: give one")
        if has_password and "password_file" in options:
            raise ValueError(f"{shown!r} gives a password and a password_file: give one")
        rules = {rule: rule for rule in get_args(OnUnavailable)}
        rule = options.get("on_unavailable", "error")
        if rule not in rules:
            raise ValueError(f"{shown!r}: on_unavailable is {rule!r}, expected one of {get_args(OnUnavailable)}")
        return StoreAddress(
            tuple(_node(part, shown) for part in nodes.split(",")),
            url.scheme in _TLS,
            user or options.get("user", ""),
            options.get("password_file", ""),
            options.get("ca_file", ""),
            rules[rule],
            _number(options, "timeout_ms", 1000, "milliseconds from 1 to 600000", shown) / 1000,
            _number(options, "node_timeout_ms", 200, "milliseconds from 1 to 600000", shown) / 1000,
            _number(options, "hedge_percent", 5, "a number from 0 to 100", shown),
            password,
        )

    @property
    def password(self) -> str:
        """The password: the first line of password_file, read at each call; without a file, the address's own or "".

        Raises OSError if the file is empty or can not be read.
        """
        if not self.password_file:
            return self.own_password
        # An empty password_file is read again: a program that writes a new password may have emptied it a moment ago.
        for _ in range(_READS):
            try:
                text = read_plain_file(Path(self.password_file)).decode()
            except UnicodeDecodeError as error:
                raise OSError(f"password_file {self.password_file} is not UTF-8 text") from error
            if found := text.partition("\n")[0]:
                return found
            time.sleep(_READ_AGAIN_S)
        raise OSError(f"password_file {self.password_file} is empty")

    def __str__(self) -> str:
        """Returns the hosts and ports of the cluster's nodes, without a password, for log lines and error texts."""
        return ",".join(f"{host}:{port}" for host, port in self.nodes)


def remote_tables(text: str) -> dict[str, StoreAddress]:
    """Parses the value of --remote_tables, TABLE=ADDRESS;MODEL/TABLE=ADDRESS, to addresses by name; raises ValueError.

    >>> list(remote_tables("user=valkey://a:1; m/item=valkey://b"))
    ['user', 'm/item']
    """
    found: dict[str, StoreAddress] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, address = part.partition("=")
        if not (name and separator):
            raise ValueError(f"{without_password(part)!r} is not TABLE=ADDRESS or MODEL/TABLE=ADDRESS")
        if name in found:
            raise ValueError(f"table {name!r} has two addresses")
        found[name] = StoreAddress.parse(address)
    return found


def without_password(text: str) -> str:
    """Returns a text with its addresses' users and passwords hidden.

    >>> without_password("user=valkey://me:secret@a:1;film=valkey://b")
    'user=valkey://(hidden)@a:1;film=valkey://b'
    """
    return _CREDENTIALS.sub("(hidden)@", text)


def _node(text: str, whole: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not separator:
        host, port = text, str(_DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{whole!r}: {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _number(options: Mapping[str, str], name: str, default: int, expected: str, whole: str) -> int:
    """Returns an option of a cluster's address as a number; raises ValueError if it is not within the limits.

    expected: names the limits, such as "a number from 0 to 100". whole: the address, for the text of the error.
    """
    text = options.get(name, str(default))
    first, last = (int(limit) for limit in expected.split(" from ")[1].split(" to "))
    if not (text.isascii() and text.isdigit() and first <= int(text) <= last):
        raise ValueError(f"{whole!r}: {name} is {text!r}, expected {expected}")
    return int(text)
