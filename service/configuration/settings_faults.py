"""Finds settings that contradict each other, and numbers outside their limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import re

from service.configuration.settings import Settings
from service.engine.model_config import is_in_store
from service.remote.address import remote_tables

_MAX_THREADS = 1024
_ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]+)?|https?://\[[0-9a-f:]+\](:[0-9]+)?"


def faults_of(settings: Settings) -> list[str]:
    """Returns an error text for each wrong setting; an empty list if the settings can be used."""
    found = []
    sources = ("models", "model_base_path", "model_config_file")
    given = [f"--{name}" for name in sources if getattr(settings, name).strip(" ,")]
    if not given:
        found.append(
            "name a folder of models, or of the versions of one model, for example: embedding-server models/movielens"
        )
    if settings.models and len(given) > 1:
        found.append(f"models are named in two ways, by the folder {settings.models} and by {given[-1]}: give one")
    paths = [] if settings.model_config_file else [settings.model_base_path, *settings.model_folders]
    if not settings.store_cache_dir:
        found += [
            f"{path} is in an object store, so --store_cache_dir must name a folder for its versions"
            for path in paths
            if is_in_store(path)
        ]
    if not settings.model_name or "/" in settings.model_name:
        found.append(f"--model_name is {settings.model_name!r}: it must not be empty or hold a '/'")
    if settings.port == settings.rest_api_port not in (0, "auto"):
        found.append(f"--port and --rest_api_port are both {settings.port}: gRPC and HTTP need one each")
    if settings.port == settings.rest_api_port == 0 and not settings.grpc_socket_path:
        found.append("--port and --rest_api_port are both 0 and there is no --grpc_socket_path: nothing can be asked")
    if settings.admin_port not in (0, "auto") and settings.admin_port in (settings.port, settings.rest_api_port):
        found.append(f"--admin_port is {settings.admin_port}: it must differ from --port and --rest_api_port")
    for name, hosts in (("host", settings.hosts), ("admin_host", settings.admin_hosts)):
        found += [
            f"--{name}: {host!r}: expected an address, such as 127.0.0.1 or ::" for host in hosts if not _is_host(host)
        ]
    if settings.admin_port != 0 and not settings.auth_config and not all(map(_is_loopback, settings.admin_hosts)):
        found.append(f"--admin_host is {settings.admin_host!r}: where others can reach it, --auth_config is required")
    if settings.rest_api_enable_cors_support and settings.cors_origins:
        found.append("--rest_api_enable_cors_support is for all origins, --rest_api_cors_origins for some: give one")
    for origin in settings.cors_origins:
        if not re.fullmatch(_ORIGIN, origin):
            found.append(f"--rest_api_cors_origins: {origin!r}: expected https://host or https://host:port")
    if settings.workers and settings.threads != "auto":
        found.append("--workers is another name of --threads: give one")
    elif not 1 <= settings.num_threads <= _MAX_THREADS:
        name = "workers" if settings.workers else "threads"
        found.append(f"--{name} is {getattr(settings, name)!r}: expected 1 to {_MAX_THREADS}, or 'auto'")
    try:
        remote_tables(settings.remote_tables)
    except ValueError as error:
        found.append(f"--remote_tables: {error}")
    if settings.paged_tables == "on" and (settings.table_prefault or settings.table_lock != "off"):
        found.append("--paged_tables=on drops pages of tables, --table_prefault and --table_lock keep all: give one")
    if not settings.tags:
        found.append("--saved_model_tags names no tag")
    own = (settings.tensorflow_intra_op_parallelism, settings.tensorflow_inter_op_parallelism)
    if settings.tensorflow_session_parallelism and all(own):
        found.append(
            "--tensorflow_session_parallelism is for both of --tensorflow_intra_op_parallelism and "
            "--tensorflow_inter_op_parallelism: give it or them"
        )
    if not all(pair.partition("=")[0] and "=" in pair for pair in settings.grpc_channel_arguments.split(",") if pair):
        found.append(f"--grpc_channel_arguments is {settings.grpc_channel_arguments!r}: expected name=value,...")
    if settings.max_bytes_in_flight < settings.max_request_bytes:
        found.append(
            f"--max_bytes_in_flight is {settings.max_bytes_in_flight}: expected at least --max_request_bytes, "
            f"{settings.max_request_bytes}"
        )
    for setting in dataclasses.fields(settings):
        value, low, high = getattr(settings, setting.name), setting.metadata["low"], setting.metadata["high"]
        if low is not None and value != "auto" and not low <= value <= high:
            found.append(f"--{setting.name} is {value}: expected {low} to {high}")
    return found


def _is_host(text: str) -> bool:
    """Says whether a text is an IP address, or may be the name of a machine."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", text) is not None
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
