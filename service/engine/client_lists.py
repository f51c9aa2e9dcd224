"""Bounds the lists of models that clients without the right "admin" send: which folders such a list may name.

TensorFlow Serving's clients add and remove models by HandleReloadConfigRequest on the public port. Without bounds, such
a request could name any folder of the machine, and the file of a request log anywhere.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from service.engine.model_config import ModelConfig, Origin, is_in_store
from service.errors import PermissionDenied

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

        Args:
          served: name -> the model that is served under it now.
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

    Args:
      origin: of the new list.
    """
    found = []
    for model in models:
        old, best = served.get(model.name), origin
        if old is not None and old.base_path == model.base_path:
            best = min(old.origin, origin, key=_LEAST_TRUSTED_LAST.index)
        found.append(replace(model, origin=best))
    return tuple(found)


def _folder_of(base_path: str) -> str:
    """Returns the folder that holds a base path; "" if that is the root of the file system, which holds everything."""
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
