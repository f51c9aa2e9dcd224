"""Lists all attacks by name, with the protocol that a port must speak, and whether a server must end the attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtest.attacks import http1_cases as http1
from loadtest.attacks import http2_cases as http2
from loadtest.attacks import reference_cases as reference
from loadtest.attacks import tls_cases as tls
from loadtest.attacks.attacker import Attacker
from loadtest.attacks.targets import Target

# The protocol of an attacked port. http2 only: HTTP/2 without HTTP/1.1. grpc: HTTP/2 with gRPC. json: HTTP/1.1 with
# JSON. tls: HTTP/1.1 or HTTP/2 over TLS. reference: HTTP/1.1 with an admin port and callers, beside a victim whose
# requests the reference server answers.
Port = Literal["http2", "http2 only", "grpc", "http1", "json", "tls", "reference"]


@dataclass(frozen=True, slots=True)
class Case:
    """One attack, and the reaction that is expected of a server.

    is_ended: whether a server must close the connection, or refuse each request. False: the attack consists of legal
      requests, or of requests that a server refuses stream by stream.
    least_s: shortest time of the attack after which a server can be expected to end it.
    cached_mib: memory that the server may keep as a cache for the attack's requests, beside what any attack may leave.
    """

    attack: Callable[[Attacker], None]
    port: Port
    is_ended: bool
    least_s: float = 0.0
    cached_mib: float = 0.0

    @property
    def what(self) -> str:
        """Describes the bytes that the attack sends."""
        return (self.attack.__doc__ or "").strip()

    def fits(self, target: Target) -> bool:
        """Says whether a target's port speaks the protocol that the attack needs."""
        fits = {
            "http2": target.wire == "http2",
            "http2 only": target.wire == "http2" and not target.takes_http1,
            "grpc": target.is_grpc,
            "http1": target.wire == "http1",
            "json": target.wire == "http1" and bool(target.large_body),
            "tls": True,
            "reference": True,
        }
        is_same_kind = bool(target.admin_port) == (self.port == "reference")
        return fits[self.port] and is_same_kind and target.is_tls == (self.port == "tls")


def _named(
    port: Port, is_ended: bool, *attacks: Callable[[Attacker], None], **named: Callable[[Attacker], None]
) -> dict[str, Case]:
    wire = "http1" if port == "json" else port
    found = {attack.__name__: attack for attack in attacks} | named
    return {f"{wire}.{name}": Case(attack, port, is_ended) for name, attack in found.items()}


CASES: dict[str, Case] = {
    **_named(
        "http2",
        True,
        http2.window_updates,
        http2.stream_window_updates,
        http2.settings_beside_streams,
        http2.settings_flood,
        http2.long_settings,
        http2.settings_unread,
        http2.ping_flood,
        http2.ping_unread,
        http2.ping_acks,
        http2.unknown_frames,
        http2.empty_data,
        http2.tiny_data,
        http2.padded_data,
        http2.priority_flood,
        http2.rapid_reset,
        http2.open_and_reset,
        http2.made_you_reset,
        http2.made_you_reset_by_window,
        http2.made_you_reset_by_data,
        http2.continuation_flood,
        http2.empty_continuation,
        http2.hpack_index_bomb,
        http2.hpack_huffman,
        http2.hpack_huffman_flood,
        http2.many_fields,
        http2.table_resizes,
        http2.byte_windows,
        http2.zero_window,
        http2.no_preface,
        http2.window_changes,
        http2.byte_continuations,
        http2.push_promises,
    ),
    "http2.wrong_preface": Case(http2.wrong_preface, "http2 only", True),
    "http2.unread_answers": Case(http2.unread_answers, "http2", True, 2.0),
    "http2.slow_read": Case(http2.slow_read, "http2", True, 5.0),
    "http2.half_frames": Case(http2.half_frames, "http2", True, 3.0),
    "http2.half_headers": Case(http2.half_headers, "http2", True, 3.0),
    **_named(
        "http2",
        False,
        http2.half_requests,
        http2.requests_flood,
        http2.dependencies,
        http2.large_headers,
        new_connections=http1.new_connections,
    ),
    **_named(
        "grpc",
        False,
        http2.many_messages,
        http2.gzip_messages,
        http2.second_gzip_messages,
        http2.stream_gzip_messages,
        http2.health_watches,
        http2.many_watches,
        http2.odd_metadata,
        http2.unknown_models,
    ),
    **_named("grpc", False, http2.model_metadata, http2.reflections, http2.reloads),
    "grpc.slow_body": Case(http2.slow_body, "grpc", True, 2.0),
    **_named(
        "tls",
        True,
        tls.handshakes,
        tls.change_cipher_specs,
        tls.large_hellos,
        tls.key_updates,
        tls.padded_records,
        tls.slow_handshakes,
    ),
    **_named("tls", False, tls.whole_handshakes, tls.hellos_at_once, tls.odd_hellos),
    **_named(
        "http1",
        True,
        http1.slow_head,
        http1.slow_body,
        http1.silent_connections,
        http1.byte_chunks,
        http1.chunk_extensions,
        http1.chunk_trailers,
        http1.pipelining_unread,
        http1.empty_lines,
        http1.huge_head,
        http1.many_headers,
        http1.huge_path,
        no_host=http1.no_host,
        two_hosts=http1.two_hosts,
        two_lengths=http1.two_lengths,
        length_and_chunks=http1.length_and_chunks,
        odd_length=http1.odd_length,
        space_in_name=http1.space_in_name,
        bad_chunk=http1.bad_chunk,
    ),
    **_named("http1", True, http1.unread_answers),
    "http1.expectations": Case(http1.expectations, "http1", True, 2.0),
    "http1.half_heads": Case(http1.half_heads, "http1", True, 3.0),
    **_named("http1", False, http1.pipelining, http1.new_connections, http1.unknown_paths),
    # Answers of one_row are within the limit if the table's vectors are short.
    **_named("json", False, http1.metrics, http1.searches, http1.names, http1.one_row),
    **_named(
        "json",
        True,
        http1.gzip_bomb,
        http1.gzip_members,
        http1.json_keys,
        http1.json_depth,
        http1.json_digits,
        http1.json_tokens,
        http1.json_strings,
        http1.json_surrogates,
    ),
    **_named(
        "reference",
        False,
        reference.changes,
        reference.upserts,
        reference.pages,
        reference.methods,
        reference.large_answers,
        reference.admin_connections,
    ),
    # Computing the first map of a table loads libraries, and the server caches the map.
    "reference.comparisons": Case(reference.comparisons, "reference", False, cached_mib=64.0),
    **_named(
        "reference",
        True,
        reference.connects,
        reference.refused_changes,
        reference.sign_ins,
        reference.wrong_tokens,
        reference.long_urls,
        reference.admin_heads,
    ),
}
