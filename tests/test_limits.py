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

# Limits without a flag: the file that defines the limit, and a pattern whose first group is the number. Or a crate
# whose own default it is, with the version in which somebody read it: a new version fails this test until it is read
# again.
CONSTANTS: dict[str, tuple[str, str]] = {
    "TLS handshakes at the same time": (f"{ADMISSION}/limits.rs", r"max_handshakes: (\d[^,]*),"),
    "header list (gRPC)": (f"{ADMISSION}/limits.rs", r"max_header_list_bytes: (\d[^,]*),"),
    "unread answers of a gRPC connection": (f"{ADMISSION}/limits.rs", r"max_owed_bytes: (\d[^,]*),"),
    "unsent answers of a gRPC connection while its socket accepts no bytes": (
        f"{ADMISSION}/limits.rs",
        r"BACKED_UP_BYTES: usize = ([^;]+);",
    ),
    "health watches, reflection calls and other calls without end of a gRPC connection": (
        f"{EDGE}/connection.rs",
        r"MAX_LONG_CALLS: usize = ([^;]+);",
    ),
    "TLS handshakes that each thread continues before other connections get their turn": (
        f"{ADMISSION}/limits.rs",
        r"HANDSHAKES_A_TURN: usize = ([^;]+);",
    ),
    "bytes of TLS without data after the handshake, such as changes of keys and padding": (
        f"{ADMISSION}/limits.rs",
        r"TLS_BYTES_WITHOUT_DATA: usize = ([^;]+);",
    ),
    "bytes of a client's TLS handshake": (f"{ADMISSION}/limits.rs", r"TLS_HANDSHAKE_BYTES: usize = ([^;]+);"),
    "intermediate certificates that a client shows": (f"{ADMISSION}/limits.rs", r"MAX_INTERMEDIATES: usize = ([^;]+);"),
    "unfinished heads (HTTP/1.1), frames and header blocks (HTTP/2) above 4 KB, of all connections": (
        f"{ADMISSION}/limits.rs",
        r"max_part_bytes: (\d[^,]*),",
    ),
    "path and query of a URL (HTTP/1.1)": (f"{ADMISSION}/limits.rs", r"URL_BYTES: usize = ([^;]+);"),
    "connections of the admin port": ("service/process/control_servers.py", r"MAX_ADMIN_CONNECTIONS = (\d+)"),
    "frame (HTTP/2)": (f"{EDGE}/http2.rs", r"FRAME_BYTES: u32 = ([^;]+);"),
    "metadata above 4 KB of a gRPC connection's open calls": (
        f"{ADMISSION}/limits.rs",
        r"HEAD_BYTES_A_CONNECTION: usize = ([^;]+);",
    ),
    "such metadata of all connections": (f"{ADMISSION}/limits.rs", r"ALL_HEAD_BYTES: usize = ([^;]+);"),
    "lines of one logger and level that the log takes at once": (
        "service/observe/logs.py",
        r"LINES_AT_ONCE, LINES_PER_S = (\d+),",
    ),
    "streams of a connection (HTTP/2)": (f"{ADMISSION}/limits.rs", r"max_streams: (\d[^,]*),"),
    "bytes that one connection writes before other connections get their turn": (
        f"{ADMISSION}/limits.rs",
        r"WRITE_BUDGET: usize = ([^;]+);",
    ),
    "bytes that one connection reads before other connections get their turn": (
        f"{ADMISSION}/limits.rs",
        r"READ_BUDGET: usize = ([^;]+);",
    ),
    "part of the connection threads' time that refusals take (gRPC), one in": (
        f"{ADMISSION}/limits.rs",
        r"REFUSAL_SHARE: u32 = ([^;]+);",
    ),
    "parts of a body (HTTP/1.1) below 32 bytes on average": (f"{ADMISSION}/limits.rs", r"TINY_PARTS: usize = ([^;]+);"),
    "inflated body or message beyond 4 MB": (f"{EDGE}/encoding.rs", r"RATIO: usize = ([^;]+);"),
    "large messages and bodies of an HTTP/2 connection that are inflated, or that Python parses, at once": (
        f"{EDGE}/connection.rs",
        r"MAX_INFLATED: usize = ([^;]+);",
    ),
    "keys of a JSON document; colons in strings count too": (
        "native/src/forms/json/document.rs",
        r"MAX_DOCUMENT_KEYS: usize = ([^;]+);",
    ),
    "lists and objects of a JSON document; brackets in strings count too": (
        "native/src/forms/json/document.rs",
        r"MAX_DOCUMENT_LISTS: usize = ([^;]+);",
    ),
    "forwarded status, metrics and reloads that run, of HTTP and of gRPC each": (
        "native/src/admission/gate.rs",
        r"CONTROL_SLOTS: usize = ([^;]+);",
    ),
    # N times what is free is N of N + 1 parts of the whole.
    "the same of one client address; of one connection": (f"{ADMISSION}/account.rs", r"ADDRESS_TIMES: usize = (\d+);"),
    "such bytes of one model; of one of its client addresses; of one of its connections": (
        f"{ADMISSION}/fair_tree.rs",
        r"SHARE: usize = (\d+);",
    ),
    "such requests of one model, client address or connection": (
        f"{ADMISSION}/fair_tree.rs",
        r"SHARE: usize = (\d+);",
    ),
    "frames without progress (HTTP/2), see below": (f"{EDGE}/frames.rs", r"ALLOWANCE: u32 = ([^;]+);"),
    "rows of a page of a table (`:page`)": ("service/control/table_view.py", r"MAX_PAGE_ROWS = (\d+)"),
    "pages and rows of tables that are read at the same time": (
        "service/http/table_view_routes.py",
        r"MAX_READS = (\d+)",
    ),
    "points of a table's map (`:projection`)": ("service/control/table_view.py", r"MAX_POINTS = ([\d_]+)"),
    "maps of tables, and colours of maps, that wait; that are kept": (
        "service/control/table_view.py",
        r"MAX_MAPS = (\d+)",
    ),
    "sessions of the console that send data requests": (
        "service/access/sessions.py",
        r"MAX_SHOWN = (\d+)",
    ),
    "closed sessions of the console that a server keeps in mind": (
        "service/access/sessions.py",
        r"MAX_CLOSED = ([\d_]+)",
    ),
    "time for a connection without a request to end after the server's last answer (HTTP/1.1) or GOAWAY (HTTP/2)": (
        f"{EDGE}/connection_watch.rs",
        r"CLOSING: Duration = Duration::from_secs\((\d+)\);",
    ),
    "length of a session of the console": ("service/access/sessions.py", r"SESSION_S = ([\d_]+)"),
    "ids and keys of a filter of a search for nearest rows": (
        "service/search/searches.py",
        r"MAX_FILTER_IDS = (\d\w*)",
    ),
    "time of a search for nearest rows, if the request has no earlier deadline": (
        "service/search/searches.py",
        r"MAX_SEARCH_S = (\d+)",
    ),
    "headers (HTTP/1.1)": ("hyper", "1.12.0"),
    "headers (HTTP/2 on the HTTP port)": (f"{ADMISSION}/limits.rs", r"MAX_HEADERS: usize = ([^;]+);"),
    "bytes that a forwarded JSON body above 64 KB counts as": (
        f"{ADMISSION}/limits.rs",
        r"PARSED_TIMES: usize = ([^;]+);",
    ),
    "repeated messages and entries of maps of a gRPC message that Python parses": (
        "native/src/forms/built_size.rs",
        r"MAX_MESSAGES: usize = ([^;]+);",
    ),
    "strings of a gRPC message": ("native/src/forms/built_size.rs", r"MAX_STRINGS: usize = ([^;]+);"),
    "strings of a JSON document; two quotes count as one": (
        "service/wire/json_body.py",
        r"MAX_STRINGS = ([^\n]+)",
    ),
    "empty DATA frames of a connection": ("h2", "0.4.20"),
    "requests that are cancelled before the server has accepted them": ("h2", "0.4.20"),
    "RST_STREAM that the server sends because of a client's errors": ("h2", "0.4.20"),
}
# Limits whose default the documentation gives as a formula, not as a number.
WORDS = {
    "as many as processors",
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
    assert CONSTANTS.keys() | RULES <= {row[0] for row in found}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_limit_is_as_the_table_says(row: list[str]) -> None:
    limit, flag, default, counted, _ = row
    if flag != "-":
        name = flag.strip("`").removeprefix("--")
        assert name in Settings.__dataclass_fields__, flag
        assert default[:1].isdigit() or default in WORDS, default
        if default[:1].isdigit():
            assert number(default) == getattr(Settings(model_base_path="m"), name), default
    elif limit in CONSTANTS:
        where, what = CONSTANTS[limit]
        if where.endswith((".rs", ".py")):
            found = re.search(what, (ROOT / where).read_text())
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
