"""Finds the version folders below a model's base path, and explains why a base path has none.

The explanation suggests the folder that the user probably means: the parent of a version, a folder inside the base
path, or one with nearly the same name. Only folders that hold a version are suggested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from service.engine.model_config import ModelConfig, is_in_store
from service.engine.version_policy import wanted_versions

SAVED_MODEL = "saved_model.pb"
# Maximum number of a folder's entries that are read to suggest a better base path: the folder may be large, and is read
# at each poll.
_MAX_ENTRIES = 100
# Maximum number of folders that one suggestion ("did you mean ...?") for a base path names.
_MAX_NAMED = 3
# Pattern of a URI in a base path. --model_base_path was made absolute before, so a URI may look like
# /current/folder/gs:/bucket/model.
_URI = re.compile(r"(?:^|/)(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<rest>.*)")


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
    """Returns one line that says which of several folders for one version number is read, the last one."""
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
    """Returns one line for a base path that can not be listed: the error, and the folder that was probably meant."""
    path = Path(base_path)
    if (uri := _URI.search(base_path)) and not os.path.exists(base_path[: uri.end("scheme") + 1]):
        told = f"cannot read its folder {uri['scheme']}://{uri['rest']}: it is a URI, and only mounted folders are read"
        meant = Path("/", uri["rest"])
        return told + (_meant([meant]) if uri["scheme"] == "file" and holds_versions(meant) else "")
    told = f"cannot read its folder {base_path}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return told + _meant(_near(path))
    if os.path.isfile(path):
        if path.suffix in (".conf", ".config", ".pbtxt", ".textproto", ".txt"):
            return f"{told}; did you mean --model_config_file={base_path}?"
        return told + _meant(parent for parent in (path.parent, *path.parent.parents[:1]) if holds_versions(parent))
    return told


def unserved(base_path: str, found: Collection[int]) -> str:
    """Returns one line that says why a base path, which can be listed, has no version that the model's policy wants.

    Args:
      found: the versions in it.
    """
    if found:
        return f"none of the versions it is configured for is in {base_path}"
    path = Path(base_path)
    told = f"no version folder (an integer name such as 1) in {base_path}"
    if _is_saved_model(path):
        told += f", which holds {SAVED_MODEL} and so is a version itself"
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
    except OSError:
        # A link may form a circle, or lead to where nobody may look.
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
            if holds_versions(candidate):
                yield candidate


def _meant(folders: Iterator[Path] | list[Path]) -> str:
    named = [str(folder) for folder in islice(folders, _MAX_NAMED)]
    return f"; did you mean {' or '.join(named)}?" if named else ""


def holds_versions(folder: Path) -> bool:
    """Says whether a folder has the folder of a version, which holds a SavedModel."""
    return any(_is_number(each.name) and _is_saved_model(each) for each in _folders(folder))


def _is_saved_model(folder: Path) -> bool:
    # os.path.isfile returns False in a folder that may not be read; Path.is_file would raise an error.
    return os.path.isfile(folder / SAVED_MODEL)


def _folders(path: Path) -> list[Path]:
    """Returns the subfolders among a folder's first _MAX_ENTRIES entries, sorted by name; [] if it can not be read."""
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in islice(entries, _MAX_ENTRIES) if entry.is_dir())
    except OSError:
        return []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
