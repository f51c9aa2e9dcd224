"""Chooses the versions to serve among a model's versions on disk.

Source: tensorflow_serving/config/file_system_storage_path_source.proto (9d981c5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latest:
    """The policy that serves the num_versions versions with the largest numbers."""

    num_versions: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """The policy that serves every version on disk."""


@dataclass(frozen=True, slots=True)
class Specific:
    """The policy that serves the listed versions, as far as they are on disk."""

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
