"""Declares the list of models, and its rules: versions to serve, base paths, and what a client may change.

A base path without versions is explained by the folder that the user probably means: the parent of a version, a folder
inside the base path, or one with nearly the same name. Only folders that hold a version are suggested.

TensorFlow Serving's clients add and remove models by HandleReloadConfigRequest on the public port. Without bounds, such
a request could name any folder of the machine, and the file of a request log anywhere.

Source: tensorflow_serving/config/{model_server_config,file_system_storage_path_source}.proto,
model_servers/server_core.cc, core/server_request_logger.cc (9d981c5), also for texts.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from service.errors import ArtifactError, InvalidRequest, PermissionDenied, ServiceError, did_you_mean, listed


@dataclass(frozen=True, slots=True)
class Latest:
    num_versions: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """The policy that serves every version on disk."""


@dataclass(frozen=True, slots=True)
class Specific:
    versions: frozenset[int]


VersionPolicy = Latest | All | Specific


def wanted_versions(policy: VersionPolicy, found: Iterable[int]) -> list[int]:
    """Returns the versions on disk that a policy serves, newest first.

    >>> wanted_versions(Latest(2), [1, 3, 2]), wanted_versions(Specific(frozenset({1, 9})), [1, 3, 2])
    ([3, 2], [1])
    """
    newest_first = sorted(found, reverse=True)
    match policy:
        case Latest(num_versions):
            # num_versions 0 means 1, as in TensorFlow Serving, because protobuf gives 0 for a field that is not set.
            return newest_first[: max(num_versions, 1)]
        case All():
            return newest_first
        case Specific(versions):
            return [version for version in newest_first if version in versions]


PLATFORM = "tensorflow"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9.]*://")
_READ = "this server reads mounted folders, and s3://, gs:// and az://"
_IN_STORE = re.compile(r"(s3|gs|az)://[^/]+(/.*)?")


# Who chose a model's base path, the most trusted first: the operator (flags, the --model_config_file), a request of a
# caller with the right "admin", or a request of a client without that right.
Origin = Literal["operator", "admin", "client"]
# The whole reason that clients get if a model that a client has added can not be loaded; the log has the real one. With
# other texts a client could learn which files and folders this machine has.
UNTOLD = "it can not be loaded from its base path; the server's log has the reason"
# Supported values of the field type in a logging_config's log collector; "" if the config names no type.
LOG_TYPES = ("", "file")


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """The file and the sampling rate of a model's request log, from its logging_config.

    filename_prefix: absolute. sampling_rate: 0 to 1. foreign: fields that this server does not support.
    """

    filename_prefix: str
    sampling_rate: float
    type: str = ""
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of one model: name, base path, policy of versions, labels and request log.

    base_path: absolute folder of the model's versions, or a URI of an object store.
    platform: "" if the list of models names none for the model.
    remote_tables: TABLE=ADDRESS of each table that is read from a cluster.
    origin: who chose the base path.
    """

    name: str
    base_path: str
    policy: VersionPolicy = Latest()
    labels: Mapping[str, int] = field(default_factory=dict)
    platform: str = PLATFORM
    request_log: RequestLogConfig | None = None
    remote_tables: tuple[str, ...] = ()
    origin: Origin = "operator"

    def told(self, reason: str) -> str:
        """Returns the reason why a version can not be loaded, as clients may see it."""
        return UNTOLD if self.origin == "client" else reason

    def told_error(self, error: ServiceError) -> ServiceError:
        return ArtifactError(UNTOLD) if self.origin == "client" else error


def is_in_store(base_path: str) -> bool:
    """Says whether a base path is the URI of an object store's bucket or of a folder in it, and not a local folder.

    >>> [is_in_store(path) for path in ("s3://bucket/m", "gs://bucket", "s3:///m", "hdfs://host/m", "/m")]
    [True, True, False, False, False]
    """
    return _IN_STORE.fullmatch(base_path) is not None


# Most characters of the name of a model, or of a label. The metrics repeat a model's name some thirty times, and each
# error about an unknown model lists all names. The path of an HTTP request has at most 8 KB.
MAX_NAME = 1000


def check_list(configs: Sequence[ModelConfig], *, has_stores: bool = False) -> None:
    """Checks a list of models: raises InvalidRequest for missing, repeated or too long names, and for unsupported base
    paths.
    """
    names: set[str] = set()
    for config in configs:
        if (longest := max(map(len, (config.name, *config.labels)))) > MAX_NAME:
            raise InvalidRequest(f"The name of a model or label has {longest} characters: expected at most {MAX_NAME}")
        if config.name in names:
            raise InvalidRequest(f"Illegal to list model {config.name} multiple times in config list")
        names.add(config.name)
    for config in configs:
        if not config.name:
            raise InvalidRequest(f"A model without a name is listed, its base_path is {config.base_path}")
        if is_in_store(config.base_path):
            if not has_stores:
                raise InvalidRequest(
                    f"Model {config.name}: base_path {config.base_path} is in an object store, so --store_cache_dir "
                    "must name a folder for its versions"
                )
            continue
        if _URI.match(config.base_path):
            raise InvalidRequest(f"Model {config.name}: base_path {config.base_path} is a URI; {_READ}")
        if not config.base_path.startswith("/"):
            raise InvalidRequest(
                f"Expected model {config.name} to have an absolute path or URI; got base_path()={config.base_path}"
            )


def check_platforms_kept(old: Mapping[str, ModelConfig], new: Iterable[ModelConfig]) -> None:
    """Raises InvalidRequest if a new list of models changes the platform of a model that is served already."""
    for config in new:
        if config.name not in old:
            continue
        before = old[config.name].platform
        if _named_platform(config) != before:
            raise InvalidRequest(
                f"Illegal to change a model's platform. For model {config.name} platform was {before} and new "
                f"platform requested is {config.platform}"
            )


def check_platforms_known(configs: Iterable[ModelConfig]) -> None:
    """Raises InvalidRequest if a model has an unsupported platform or an unsupported request log."""
    for config in configs:
        if _named_platform(config) != PLATFORM:
            near = did_you_mean(config.platform, [PLATFORM])
            raise InvalidRequest(f"Model {config.name} requests unsupported platform {config.platform}{near}")
        if config.request_log is not None:
            _check_request_log(config.name, config.request_log)


def _check_request_log(model: str, log: RequestLogConfig) -> None:
    if log.type not in LOG_TYPES:
        raise InvalidRequest(f"Cannot find LogCollector::Factory for type: {log.type}")
    if log.foreign:
        raise InvalidRequest(f"Model {model}: {log.foreign[0]} of logging_config is not supported")
    if not log.filename_prefix:
        raise InvalidRequest("No request-logger-creator provided.")
    if not log.filename_prefix.startswith("/"):
        raise InvalidRequest(
            f"Model {model}: filename_prefix of logging_config must be absolute; got {log.filename_prefix}"
        )
    if not 0 <= log.sampling_rate <= 1:
        raise InvalidRequest(
            f"Model {model}: sampling_rate of logging_config is {log.sampling_rate:g}: expected 0 to 1"
        )


def _named_platform(config: ModelConfig) -> str:
    if not config.platform:
        raise InvalidRequest(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {config.name}; "
            'its config needs model_platform: "tensorflow"'
        )
    return config.platform


# The file of a version's graph, as bytes; and as text, which is read if there is no other.
SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")
# Maximum number of a folder's entries that are read to suggest a better base path: the folder may be large, and is read
# at each poll.
_MAX_ENTRIES = 100
# Maximum number of folders that one suggestion ("did you mean ...?") for a base path names.
_MAX_NAMED = 3
# Pattern of a URI in a base path. --model_base_path was made absolute before, so a URI may look like
# /current/folder/gs:/bucket/model.
_STORE_URI = re.compile(r"(?:^|/)(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)")


def find_versions(base_path: Path) -> dict[int, Path]:
    """Returns version -> folder for all folders in a base path whose names are integers (also 007). Raises OSError.

    A number beyond int64 is no version: no wire could name it. Of two folders for one number the last by name counts.
    """
    return {version: paths[-1] for version, paths in find_all_folders(base_path).items()}


def find_all_folders(base_path: Path) -> dict[int, list[Path]]:
    """Returns version -> its folders by name: several where names differ in leading zeros only. Raises OSError."""
    found: dict[str, int] = {}
    # Each poll of each model runs this: os.scandir() needs no system call to tell a folder from a file.
    with os.scandir(base_path) as entries:
        for entry in entries:
            if (version := version_number(entry.name)) is not None and _is_dir(entry):
                found[entry.name] = version
    numbered: dict[int, list[Path]] = {}
    for name in sorted(found):
        numbered.setdefault(found[name], []).append(base_path / name)
    return numbered


def same_number(folders: Sequence[str]) -> str:
    *others, read = folders
    return f"folder {read} is read, and {', '.join(others)} is not: their names are the same number; remove one"


def version_number(name: str) -> int | None:
    """Returns the version number that a folder's name means; None if the name is not a version's.

    >>> version_number("0012"), version_number("12a"), version_number(str(2**63))
    (12, None, None)
    """
    if not _is_number(name):
        return None
    version = int(name)
    return version if version < 2**63 else None


def fault_of(config: ModelConfig) -> str:
    """Returns one line that says why a model's base path has no version to load; "" if it has one.

    An object store is not looked into: only the server itself asks a store.
    """
    if is_in_store(config.base_path):
        return ""
    try:
        found = find_versions(Path(config.base_path))
    except OSError as error:
        return unreadable(config.base_path, error)
    return "" if wanted_versions(config.policy, found) else unserved(config.base_path, found)


def unreadable(base_path: str, error: OSError) -> str:
    path = Path(base_path)
    if (uri := _STORE_URI.search(base_path)) and not os.path.exists(base_path[: uri.end("scheme") + 1]):
        if (scheme := uri["scheme"].lower()) in ("s3", "gs", "az"):
            return f"cannot read {base_path}: a place in an object store is written {scheme}://BUCKET/PLACE"
        told = f"cannot read the folder {uri['scheme']}://{uri['rest']}: it is a URI; {_READ}"
        meant = Path("/", uri["rest"])
        return told + (_meant([meant]) if uri["scheme"] == "file" and holds_versions(meant) else "")
    told = f"cannot read the folder {base_path}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return told + _meant(_near(path))
    if os.path.isfile(path):
        if path.suffix in (".conf", ".config", ".pbtxt", ".textproto", ".txt"):
            return f"{told}; did you mean --model_config_file={base_path}?"
        return told + _meant(parent for parent in (path.parent, *path.parent.parents[:1]) if holds_versions(parent))
    return told


def unserved(base_path: str, found: Collection[int]) -> str:
    if found:
        there = listed([str(version) for version in sorted(found)])
        return f"none of the versions in model_version_policy is in {base_path}, which has {there}"
    path = Path(base_path)
    told = f"no version folder (an integer name such as 1) in {base_path}"
    if _is_saved_model(path):
        told += f", which holds {SAVED_MODELS[0]} and so is a version itself"
        if holds_versions(path.parent):
            return told + _meant([path.parent])
        return f"{told}; move its files to a version folder, such as {path / '1'}"
    if inside := [folder for folder in _folders(path) if holds_versions(folder)]:
        several = " Several models need a --model_config_file." if len(inside) > 1 else ""
        return told + _meant(inside) + several
    if misnamed := [folder for folder in _folders(path) if _is_saved_model(folder)]:
        return f"{told}; did you mean to name {misnamed[0].name} in that folder by a number?"
    return told


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG):
            # The file system does not tell what the link leads to: a loaded version must not count as removed.
            raise
        # The link forms a circle, or leads to where nobody may look.
        return False


def _near(path: Path) -> Iterator[Path]:
    """Yields the folders that a wrong path may mean: the parent of a version's folder, or folders of similar names."""
    if _is_number(path.name) and holds_versions(path.parent):
        yield path.parent
        return
    missing = []
    while not os.path.isdir(path) and path != path.parent:
        missing.append(path.name)
        path = path.parent
    name, rest = missing[-1], missing[-2::-1]
    spelt = {folder.name.lower(): folder for folder in _folders(path)}
    for near in get_close_matches(name.lower(), spelt, _MAX_NAMED):
        for candidate in dict.fromkeys((spelt[near].joinpath(*rest), spelt[near])):
            if holds_versions(candidate) or any(map(holds_versions, _folders(candidate))):
                yield candidate
                break


def _meant(folders: Iterator[Path] | list[Path]) -> str:
    named = [str(folder) for folder in islice(folders, _MAX_NAMED)]
    return f"; did you mean {' or '.join(named)}?" if named else ""


def holds_versions(folder: Path) -> bool:
    return any(_is_number(each.name) and _is_saved_model(each) for each in _folders(folder))


def _is_saved_model(folder: Path) -> bool:
    # os.path.isfile returns False in a folder that may not be read; Path.is_file would raise an error.
    return any(os.path.isfile(folder / name) for name in SAVED_MODELS)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in islice(entries, _MAX_ENTRIES) if entry.is_dir())
    except OSError:
        return []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


_LEAST_TRUSTED_LAST: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class ClientFolders:
    """The folders that the operator has opened to clients' lists of models, beside those of the served models.

    model_root: folder, or place in an object store, below which base paths may lie. "": none.
    request_log_root: folder below which request logs may be written. "": none.
    """

    model_root: str = ""
    request_log_root: str = ""

    def check(self, new: Iterable[ModelConfig], served: Mapping[str, ModelConfig]) -> None:
        """Raises PermissionDenied for a base path or a request log that a client may not choose.

        A model keeps its base path and its file of requests. Another base path must lie in a folder that holds a served
        model already, or below model_root; another file of requests must lie below request_log_root.
        """
        for config in new:
            old = served.get(config.name)
            if old is None or config.base_path != old.base_path:
                self._check_base_path(config, served.values())
            log, old_log = config.request_log, None if old is None else old.request_log
            if log is None or (old_log is not None and log.filename_prefix == old_log.filename_prefix):
                continue
            root = self.request_log_root
            if not (root and os.path.basename(log.filename_prefix) and _is_below(log.filename_prefix, root)):
                raise PermissionDenied(
                    f'Model {config.name}: without the right "admin" a reload request may start no request log: '
                    "the filename_prefix of its logging_config must lie below the server's --request_log_root."
                )

    def _check_base_path(self, config: ModelConfig, served: Iterable[ModelConfig]) -> None:
        path = config.base_path
        roots = [_folder_of(one.base_path) for one in served] + [self.model_root]
        if is_in_store(path):
            is_open = any(root and _is_below_in_store(path, root) for root in roots)
        else:
            # check_list() refuses relative paths and other URIs, without a look at the disk.
            is_open = not path.startswith("/") or any(root and _is_below(path, root) for root in roots)
        if not is_open:
            raise PermissionDenied(
                f'Model {config.name}: without the right "admin" a reload request may not use the base_path {path}: it '
                "must lie in the same folder as a model that is served already, or below the server's --model_root."
            )


def with_origin(
    models: Sequence[ModelConfig], served: Mapping[str, ModelConfig], origin: Origin
) -> tuple[ModelConfig, ...]:
    """Returns a list of models in which each model says who chose its base path.

    A model whose base path stays the same keeps its origin, unless a more trusted one lists the model now.
    """
    found = []
    for model in models:
        old, best = served.get(model.name), origin
        if old is not None and old.base_path == model.base_path:
            best = min(old.origin, origin, key=_LEAST_TRUSTED_LAST.index)
        found.append(replace(model, origin=best))
    return tuple(found)


def _folder_of(base_path: str) -> str:
    folder = posixpath.dirname(base_path.rstrip("/"))
    if is_in_store(base_path):
        return folder if is_in_store(folder) else ""
    return folder if folder.startswith("/") and os.path.realpath(folder) != "/" else ""


def _is_below(path: str, folder: str) -> bool:
    """Says whether a path lies below a folder, both as written and after `..` and symbolic links are resolved.

    A path that lies elsewhere as written is not looked up, because a look alone can mount a file system.
    """
    whole = os.path.abspath(folder)
    written = os.path.normpath(path)
    if not any(_starts_with(written, one) for one in (whole, os.path.realpath(whole))):
        return False
    return _starts_with(os.path.realpath(path), os.path.realpath(whole))


def _is_below_in_store(path: str, folder: str) -> bool:
    return ".." not in path.split("/") and _starts_with(path.rstrip("/"), folder.rstrip("/"))


def _starts_with(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")
