"""Writes this server's own metrics, with labels that TensorFlow Serving's metrics lack:

API, version, signature, table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from service.engine.call import Subject
from service.engine.servable import Files, LoadedServable
from service.observe.batch_metrics import Batches
from service.observe.buckets import QUEUE, REQUEST, SECONDS, Times
from service.observe.metric_text import family, histogram, labels, sample
from service.observe.request_metrics import Requests, Successes
from service.types import TableCounts

_SECONDS = tuple(map(repr, SECONDS))
_PREFIX = "embedding_server_"


def request_lines(requests: Requests) -> list[str]:
    name = _PREFIX + "requests_total"
    lines = family(name, "counter", "Requests finished, by canonical code; OK: succeeded.")
    found: dict[Subject, Successes] = {}
    counts: dict[tuple[Subject, str], int] = {}
    # These metrics have no label for the method (such as Predict), so the counts of a signature's methods are added:
    # hardly any signature has two methods, and TensorFlow Serving's metrics have the label.
    for subject, cell in requests.successes.items():
        key = subject._replace(method="")
        found.setdefault(key, Successes(cell.kind, False)).merge(cell)
    for (subject, code), count in requests.failures.items():
        key = subject._replace(method="")
        counts[key, code] = counts.get((key, code), 0) + count
    counts |= {(subject, "OK"): cell.count for subject, cell in found.items()}
    lines += [
        sample(name, _subject(subject, code), float(count))
        for (subject, code), count in sorted(counts.items(), key=lambda item: (_order(item[0][0]), item[0][1]))
    ]
    cells = [(_subject(subject), cell) for subject, cell in sorted(found.items(), key=lambda item: _order(item[0]))]
    lines += _times(
        "request_seconds",
        "Seconds from the whole request to the encoded answer, of requests that succeeded.",
        [(labelled, cell.times) for labelled, cell in cells],
    )
    lines += _times(
        "run_seconds",
        "Seconds in the tables or the graph, waits for a batch included, of requests that succeeded.",
        sorted(_run_times(found).items()),
    )
    name = _PREFIX + "rows_total"
    lines += family(name, "counter", "Rows (examples) of requests that succeeded.")
    return lines + [sample(name, labelled, float(cell.rows)) for labelled, cell in cells]


def _run_times(found: Mapping[Subject, Successes]) -> dict[str, Times]:
    totals: dict[str, Times] = {}
    for subject, cell in found.items():
        # Run times have no label for HTTP or gRPC, which do not influence them: each label would add the many lines of
        # a histogram.
        labelled = labels({"model": subject.model, "signature": subject.signature, "version": subject.version})
        totals.setdefault(labelled, Times(REQUEST)).merge(cell.run_times)
    return totals


def servable_lines(loaded: Sequence[LoadedServable]) -> list[str]:
    name = _PREFIX + "requests_in_flight"
    lines = family(name, "gauge", "Requests that hold the version now.")
    lines += [
        sample(name, labels({"model": one.servable.name, "version": one.servable.version}), float(one.num_leases))
        for one in loaded
    ]
    for part, about, is_so in _FILES_FAMILIES:
        name = _PREFIX + part
        lines += family(name, "gauge", about)
        lines += [
            sample(
                name,
                labels({"model": one.servable.name, "version": one.servable.version}),
                float(is_so(one.servable.files)),
            )
            for one in loaded
        ]
    tables = [
        (labels({"model": one.servable.name, "table": table, "version": one.servable.version}), counts)
        for one in loaded
        for table, counts in sorted(one.servable.all_table_counts().items())
    ]
    for part, about, read in _TABLE_FAMILIES:
        name = _PREFIX + part
        lines += family(name, "counter", about)
        lines += [sample(name, labelled, float(read(counts))) for labelled, counts in tables]
    return lines


_FILES_FAMILIES: tuple[tuple[str, str, Callable[[Files], bool]], ...] = (
    (
        "tables_verified",
        "1: the bytes of all tables were compared with their checksums.",
        lambda files: files.is_verified,
    ),
    (
        "tables_verification_due",
        "1: the version answers, and its tables are still to be compared with their checksums.",
        lambda files: files.is_verification_due,
    ),
)
_TABLE_FAMILIES: tuple[tuple[str, str, Callable[[TableCounts], int]], ...] = (
    ("table_ids_total", "Ids that lookups sent to the table.", lambda counts: counts.ids),
    (
        "table_missing_ids_total",
        "Ids of lookups without a row, whatever the feature's policy did with them; dropped keys included.",
        lambda counts: counts.missing_ids,
    ),
    (
        "table_oov_keys_total",
        "String and integer keys that are not in the vocabulary, with an OOV row or without.",
        lambda c: c.oov_keys,
    ),
    ("table_read_bytes_total", "Bytes of the rows that lookups read from the table.", lambda counts: counts.read_bytes),
)


def batch_lines(batches: Batches) -> list[str]:
    waits = Times(QUEUE)
    for of_pool in batches.waits.values():
        waits.merge(of_pool)
    lines = _times("queue_seconds", "Seconds that requests waited for their batch.", [("", waits)])
    name = _PREFIX + "batched_requests_total"
    lines += family(name, "counter", "Requests in batches that were run; one that is split counts in each.")
    lines.append(sample(name, "", float(batches.num_requests)))
    name = _PREFIX + "batching_rejected_total"
    lines += family(name, "counter", "Requests that no batch took, by canonical code: too large, queue full, too late.")
    return lines + [
        sample(name, labels({"code": code}), float(count)) for code, count in sorted(batches.rejected.items())
    ]


def _times(part: str, about: str, found: Iterable[tuple[str, Times]]) -> list[str]:
    name = _PREFIX + part
    lines = family(name, "histogram", about)
    for labelled, times in found:
        places = times.limits.seconds
        lines += histogram(name, labelled, limits=_SECONDS, counts=times.counts, total=times.seconds, places=places)
    return lines


def _subject(subject: Subject, code: str = "") -> str:
    version = "" if subject.version is None else subject.version
    named = {"api": subject.api, "code": code, "model": subject.model, "signature": subject.signature}
    return labels({name: value for name, value in named.items() if name != "code" or value} | {"version": version})


def _order(subject: Subject) -> tuple[str, str, int, str]:
    return subject.model, subject.signature, -1 if subject.version is None else subject.version, subject.api
