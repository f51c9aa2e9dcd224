"""Checks that the limits in docs/security.md agree with the code: flags, metrics, reasons and defaults."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from service.configuration.settings import Settings

ROOT = Path(__file__).parents[1]
EDGE = "native/src/edge"
ADMISSION = "native/src/admission"
_HEAD = "| Limit | Flag | Default | Counted as | What a client sees |\n|---|---|---|---|---|\n"
_UNITS = {"": 1, "s": 1, "ms": 1, "KB": 1 << 10, "MB": 1 << 20, "GiB": 1 << 30}

# Limits without a flag: the file that defines the limit -> limit -> the name of its constant or field. Or a crate whose
# own default it is, with the version in which somebody read it: a new version fails this test until it is read again.
# N times what is free is N of N + 1 parts of the whole.
CONSTANTS: dict[str, dict[str, str]] = {
    f"{ADMISSION}/limits.rs": {
        "TLS handshakes at the same time": "max_handshakes",
        "header list (gRPC)": "max_header_list_bytes",
        "request line and headers (HTTP/1.1)": "max_head_bytes",
        "such calls of all connections": "max_long_calls",
        "unread answers of a gRPC connection": "max_owed_bytes",
        "unsent answers of a gRPC connection while its socket accepts no bytes": "BACKED_UP_BYTES",
        "TLS handshakes that each thread continues before other connections get their turn": "HANDSHAKES_A_TURN",
        "bytes of TLS without data after the handshake, such as changes of keys and padding": "TLS_BYTES_WITHOUT_DATA",
        "bytes of a client's TLS handshake": "TLS_HANDSHAKE_BYTES",
        "intermediate certificates that a client shows": "MAX_INTERMEDIATES",
        "unfinished heads (HTTP/1.1), frames and header blocks (HTTP/2) above 4 KB, "
        "of all connections": "max_part_bytes",
        "path and query of a URL (HTTP/1.1)": "URL_BYTES",
        "metadata above 4 KB of a gRPC connection's open calls": "HEAD_BYTES_A_CONNECTION",
        "such metadata of all connections": "ALL_HEAD_BYTES",
        "streams of a connection (HTTP/2)": "max_streams",
        "bytes that one connection writes before other connections get their turn": "WRITE_BUDGET",
        "bytes that one connection reads before other connections get their turn": "READ_BUDGET",
        "part of the connection threads' time that refusals take (gRPC), one in": "REFUSAL_SHARE",
        "parts of a body (HTTP/1.1) below 32 bytes on average": "TINY_PARTS",
        "headers (HTTP/2 on the HTTP port)": "MAX_HEADERS",
        "bytes that a forwarded JSON body above 64 KB counts as": "PARSED_TIMES",
    },
    f"{EDGE}/connection.rs": {
        "health watches, reflection calls and other calls without end of a gRPC connection": "MAX_LONG_CALLS",
        "large messages and bodies of an HTTP/2 connection that are inflated, "
        "or that Python parses, at once": "MAX_INFLATED",
    },
    "service/process/control_servers.py": {"request line and headers on the admin port": "MAX_HEAD_BYTES"},
    "service/versions/neighbors.py": {
        "neighbours of a query of a search": "MAX_K",
        "queries of a search": "MAX_QUERIES",
    },
    "service/process/resources.py": {"connections of the admin port": "MAX_ADMIN_CONNECTIONS"},
    f"{EDGE}/http2.rs": {"frame (HTTP/2)": "FRAME_BYTES"},
    "service/versions/model_config.py": {
        "characters of the name of a model or label in a list of models": "MAX_NAME",
    },
    "service/observe/logs.py": {"lines of one logger and level that the log takes at once": "LINES_AT_ONCE"},
    f"{EDGE}/encoding.rs": {"inflated body or message beyond 4 MB": "RATIO"},
    "native/src/forms/json/document.rs": {
        "keys of a JSON document; colons in strings count too": "MAX_DOCUMENT_KEYS",
        "lists and objects of a JSON document; brackets in strings count too": "MAX_DOCUMENT_LISTS",
    },
    f"{ADMISSION}/gate.rs": {
        "forwarded status, metrics and reloads that run, of HTTP and of gRPC each": "CONTROL_SLOTS"
    },
    f"{ADMISSION}/account.rs": {"the same of one client address; of one connection": "ADDRESS_TIMES"},
    f"{ADMISSION}/fair_tree.rs": {
        "such bytes of one model; of one of its client addresses; of one of its connections": "SHARE",
        "such requests of one model, client address or connection": "SHARE",
    },
    f"{EDGE}/frames.rs": {"frames without progress (HTTP/2), see below": "ALLOWANCE"},
    "service/control/table_view.py": {
        "rows of a page of a table (`:page`)": "MAX_PAGE_ROWS",
        "points of a table's map (`:projection`)": "MAX_POINTS",
        "maps of tables, and colours of maps, that wait; that are kept": "MAX_MAPS",
    },
    "service/http/table_view_routes.py": {"pages and rows of tables that are read at the same time": "MAX_READS"},
    "service/access/sessions.py": {
        "sessions of the console that send data requests": "MAX_SHOWN",
        "closed sessions of the console that a server keeps in mind": "MAX_CLOSED",
        "length of a session of the console": "SESSION_S",
    },
    f"{EDGE}/connection_watch.rs": {
        "time for a connection without a request to end after the server's last answer "
        "(HTTP/1.1) or GOAWAY (HTTP/2)": "CLOSING"
    },
    "service/search/searches.py": {
        "ids and keys of a filter of a search for nearest rows": "MAX_FILTER_IDS",
        "time of a search for nearest rows, if the request has no earlier deadline": "MAX_SEARCH_S",
    },
    "hyper": {"headers (HTTP/1.1)": "1.12.0"},
    "native/src/forms/built_size.rs": {
        "repeated messages and entries of maps of a gRPC message that Python parses": "MAX_MESSAGES",
        "strings of a gRPC message": "MAX_STRINGS",
    },
    "service/wire/json_body.py": {"strings of a JSON document; two quotes count as one": "MAX_STRINGS"},
    "h2": {
        "empty DATA frames of a connection": "0.4.20",
        "RST_STREAM that the server sends because of a client's errors": "0.4.20",
    },
}
_PLACES = {limit: (file, name) for file, limits in CONSTANTS.items() for limit, name in limits.items()}
# Limits whose default the documentation gives as a formula, not as a number.
WORDS = {
    "a quarter of the memory, at most 1 GiB",
    "as many as processors",
    "as many as streams",
    "half of the limit on open files",
    "twice that",
}
# Limits that are rules of a protocol, so the code has no number for them.
RULES = {
    "Host header (HTTP/1.1); two, or none",
    "messages of a unary gRPC call",
    "pipelined requests (HTTP/1.1) while answers are unread",
}


def rows() -> list[list[str]]:
    """Returns the cells of each row in the table of limits."""
    table = (ROOT / "docs/security.md").read_text().partition(_HEAD)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_there_is_a_table() -> None:
    found = rows()
    assert len(found) > 25 and {len(row) for row in found} == {5}
    assert _PLACES.keys() | RULES <= {row[0] for row in found}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_limit_is_as_the_table_says(row: list[str]) -> None:
    limit, flag, default, counted, _ = row
    if flag != "-":
        name = flag.strip("`").removeprefix("--")
        assert name in Settings.__dataclass_fields__, flag
        assert default[:1].isdigit() or default in WORDS, default
        if default[:1].isdigit():
            assert number(default) == getattr(Settings(model_base_path="m"), name), default
    elif limit in _PLACES:
        where, what = _PLACES[limit]
        if where.endswith((".rs", ".py")):
            value = r"(?:, \w+)?(?:: \w+)? ?[=:] (?:Duration::from_secs\()?(\d[\w <]*)"
            found = re.search(rf"\b{what}{value}", (ROOT / where).read_text())
            assert found and number(default) == evaluated(found[1]), default
        else:
            assert f'name = "{where}"\nversion = "{what}"\n' in (ROOT / "native/Cargo.lock").read_text()
    else:
        assert limit in RULES or not default[:1].isdigit(), "a number that no test compares with the code"
    for kind, reasons in re.findall(r"(closed|refused): ((?:`\w+`(?:, )?)+)", counted):
        for reason in re.findall(r"`(\w+)`", reasons):
            assert reason in known_reasons(kind), reason
    for metric in re.findall(r"`embedding_server_(\w+)`", counted):
        assert is_metric(metric), metric


def test_a_metric_that_documents_name_is_one_of_the_servers() -> None:
    for document in ("docs/security.md", "docs/overload.md"):
        for metric in re.findall(r"`embedding_server_(\w+)", (ROOT / document).read_text()):
            assert is_metric(metric), f"{document}: {metric}"


def number(text: str) -> float:
    """Reads a default in the table, such as "64 KB", "262,144", "4096, and 100 a second" or "0.5 s", as a number.

    >>> [number(text) for text in ("64 KB", "262,144", "20 s, and more", "100 times its size")]
    [65536.0, 262144.0, 20.0, 100.0]
    """
    found = re.match(r"([\d,]*\d(?:\.\d+)?)(?: (\w+))?", text)
    assert found, text
    return float(found[1].replace(",", "")) * _UNITS.get(found[2] or "", 1)


def evaluated(text: str) -> int:
    """Computes the value of an expression of Rust such as "64 << 10" or "1000"."""
    left, _, right = text.replace("_", "").partition("<<")
    return int(left) << int(right or 0)


def is_metric(name: str) -> bool:
    """Says whether a source file of the server names a metric: as a whole, or as a prefix and the rest."""
    words = f"embedding_server_{name}".split("_")
    cuts = [("_".join(words[:at]), "_".join(words[at:])) for at in range(2, len(words))]
    return any(
        f"embedding_server_{name}" in text or any(f'"{start}_"' in text and f'"{rest}"' in text for start, rest in cuts)
        for text in sources()
    )


@cache
def sources() -> tuple[str, ...]:
    """Returns the texts of the server's Python sources."""
    return tuple(file.read_text() for file in sorted((ROOT / "service").rglob("*.py")))


@cache
def known_reasons(kind: str) -> frozenset[str]:
    """Returns the reasons, as metrics count them, for which the core closes connections or refuses requests."""
    statistics = (ROOT / EDGE / "statistics.rs").read_text()
    if kind == "closed":
        block = re.search(r"flooded: by\(&\[(.+?)\]\)", statistics, re.DOTALL)
        assert block
        floods = {name if name == "malformed" else f"flood_{name}" for name in re.findall(r'"(\w+)"', block[1])}
        return frozenset(floods | {"connections", "handshake", "idle", "stalled"})
    refusing = "".join((ROOT / EDGE / name).read_text() for name in ("shared.rs", "grpc_forwarding.rs", "http.rs"))
    found = set(re.findall(r'statistics\s*\.refused\([^,]+, "(\w+)"\)', refusing))
    return frozenset(found | set(re.findall(r'=> "(\w+)"', (ROOT / ADMISSION / "fair_queue.rs").read_text())))
