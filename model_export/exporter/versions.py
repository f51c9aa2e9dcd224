"""Finds and numbers the version folders of a model: names are positive integers, and the largest is the newest."""

from __future__ import annotations

from pathlib import Path

from model_export.errors import ExportError
from model_export.folder_checks import check_writable

# First part of the path that Path() makes of an object store's URI: Path turns s3://bucket into s3:/bucket.
_SCHEMES = ("s3:", "gs:", "az:")


def existing_versions(base: Path) -> list[int]:
    names = [path.name for path in base.iterdir()] if base.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def new_version_folder(base: Path, version: int | None) -> Path:
    """Returns the path of a new version's folder; version None means the highest number plus 1, or 1.

    Raises:
      ExportError: the version is not positive or exists, or `base` can not be written to.
    """
    if base.parts and base.parts[0] in _SCHEMES:
        raise ExportError(f"{base} is in an object store: write a folder, then send it with `model-export upload`")
    if version is None:
        version = 1 + max(existing_versions(base), default=0)
    if version < 1:
        raise ExportError(f"version is {version}; versions are positive integers")
    target = base / str(version)
    check_writable(base)
    if target.exists():
        raise ExportError(f"{target} exists; a version is never overwritten: leave --version out for the next")
    return target
