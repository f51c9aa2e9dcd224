"""Finds what an operator should look at in the content of the status page, such as a version that failed to load.

The rules of examples/compose/alerts.yml judge rates and durations, which need the history that Prometheus keeps. The
checks here see one moment only: each check reports a present state, or a count since a start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The status page warns of a limit, such as the one on bytes in flight, if at least this share of it is used.
FULL = 0.9
# The status page warns of a version whose deltas wait longer than this (seconds), as the alert EmbeddingDeltaLag.
MAX_LAG_S = 10
# The status page warns of a TLS certificate that expires within this many seconds.
CERTIFICATE_S = 14 * 86_400


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The state of certificates and of the --auth_config file, which the server reads again while it runs.

    certificate_ends_s: port -> when its first certificate expires, in seconds since 1970. is_auth_current: False: the
    present --auth_config file was refused, and an older one is in force.
    """

    certificate_ends_s: Mapping[str, float] = field(default_factory=dict)
    is_auth_current: bool = True


class Notice(NamedTuple):
    """A problem on the status page. model: "" for the whole server. alert: the name of its Prometheus alert, or ""."""

    model: str
    message: str
    alert: str


def attention(document: Mapping[str, Any], files: ReadFiles, now_s: float) -> list[dict[str, str]]:
    """Returns what needs attention, as dicts of the fields of Notice; document: the content of the status page."""
    found = [
        *_of_models(document["models"]),
        *_of_limits(document),
        *_of_places(document),
        *_of_files(files, now_s),
    ]
    return [one._asdict() for one in found]


def _of_models(models: Mapping[str, Any]) -> Iterator[Notice]:
    if not models:
        yield Notice("", "no model is configured, so /readyz answers 503", "")
    for name, model in models.items():
        if model["problem"]:
            yield Notice(name, f"can not answer: {model['problem']}", "EmbeddingModelUnavailable")
        if model["folder"] not in ("", model["problem"]):
            yield Notice(name, f"no new versions are seen: {model['folder']}", "")
        for version in model["versions"]:
            where = f"version {version['version']}"
            # A model without a version that answers is told with the error of its newest version, once.
            is_told = version["message"] and model["problem"].endswith(f": {version['message']}")
            if version["state"] == "END" and version["code"] != "OK" and not is_told:
                alert = "EmbeddingVersionDamaged" if version["code"] == "DATA_LOSS" else "EmbeddingVersionFailed"
                yield Notice(name, f"{where}: {version['code']}: {version['message']}", alert)
            for reason, signatures in _by_reason(version.get("can_not_run", {})).items():
                message = f"{where}: the native core does not run {', '.join(signatures)}: {reason}"
                yield Notice(name, message, "EmbeddingSignaturesNotRun")
            if notice := version.get("notice"):
                yield Notice(name, f"{where}: {notice}", "")
            if unproven := version.get("unproven"):
                yield Notice(name, f"{where}: a spec is believed that adopt could not prove: {', '.join(unproven)}", "")
            if version["note"]:
                yield Notice(name, f"{where}: {version['note']}", "")
            if version.get("deltas"):
                for message, alert in _of_deltas(version["deltas"]):
                    yield Notice(name, f"{where}: {message}", alert)


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found.setdefault(reason, []).append(name)
    return found


def _of_deltas(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if refused := sum(status["refused"].values()):
        reasons = ", ".join(sorted(status["refused"]))
        yield f"{refused} deltas were refused since it was loaded ({reasons})", "EmbeddingDeltasRefused"
    if failed := {reason: count for reason, count in status["journal_failures"].items() if count}:
        reasons = ", ".join(sorted(failed))
        yield f"{sum(failed.values())} upserts were not put into the journal ({reasons})", "EmbeddingJournalFails"
    if status["lag_s"] > MAX_LAG_S:
        yield f"deltas have waited for {status['lag_s']:.0f} s", "EmbeddingDeltaLag"
    if status["missing"]:
        yield f"{status['missing']} numbers of deltas are missing", ""
    journal = status["journal"]
    if journal is not None and journal["bytes"] >= FULL * journal["max_bytes"]:
        share = 100 * journal["bytes"] / journal["max_bytes"]
        yield f"the journal is full to {share:.0f} %: fold it into a new version", ""


def _of_limits(document: Mapping[str, Any]) -> Iterator[Notice]:
    held = document["overload"]
    if held:
        used, limit = sum(one["in_flight_bytes"] for one in held["models"]), held["limits"]["bytes"]
        if limit and used >= FULL * limit:
            yield Notice("", f"{used} of {limit} bytes are in flight", "EmbeddingInFlightFull")
    server = document["server"]
    used, limit = server.get("open_files", 0), server.get("max_files", 0)
    if limit > 0 and used >= FULL * limit:
        yield Notice("", f"{used} of {limit} file descriptors are open", "EmbeddingFileDescriptors")


def _of_places(document: Mapping[str, Any]) -> Iterator[Notice]:
    for cluster in document["clusters"]:
        if cluster["problem"]:
            yield Notice("", f"cluster {cluster['cluster']}: {cluster['problem']}", "EmbeddingClusterUnreachable")
        silent = [node["node"] for node in cluster["nodes"] if not node["answers"]]
        if silent and not cluster["problem"]:
            message = f"cluster {cluster['cluster']}: {', '.join(silent)} not reached; other nodes answer for it"
            yield Notice("", message, "EmbeddingClusterNodeDown")
        for table in cluster["tables"]:
            if table["problem"]:
                message = f"version {table['version']}: rows of table {table['table']}: {table['problem']}"
                yield Notice(table["model"], message, "EmbeddingRemoteRowsLost")
            if table["refusal"]:
                message = (
                    f"version {table['version']}: upserts of table {table['table']} are refused: {table['refusal']}"
                )
                yield Notice(table["model"], message, "EmbeddingRemoteUpsertsRefused")
    for store in document["stores"]:
        if store["problem"]:
            yield Notice(store["model"], f"object store: {store['problem']}", "EmbeddingStoreUnlisted")
    for name, log in document["request_logs"].items():
        if log["is_disabled"]:
            yield Notice(name, "an error ended the request log", "EmbeddingRequestLogDisabled")


def _of_files(files: ReadFiles, now_s: float) -> Iterator[Notice]:
    for port, end_s in sorted(files.certificate_ends_s.items()):
        left_s = end_s - now_s
        if left_s < 0:
            yield Notice("", f"the certificate of the {port} port has expired", "")
        elif left_s < CERTIFICATE_S:
            yield Notice("", f"the certificate of the {port} port expires in {left_s / 86_400:.1f} days", "")
    if not files.is_auth_current:
        yield Notice("", "the --auth_config file has a fault, so that an older one is in force", "")
