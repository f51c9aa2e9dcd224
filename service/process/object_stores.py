"""Opens the object stores from which the settings let the server load models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.configuration.settings import Settings
from service.configuration.start_error import StartError

if TYPE_CHECKING:
    from service.stores.stores import Stores


def open_stores(settings: Settings) -> Stores | None:
    """Returns the Stores object of the server; None without --store_cache_dir. Raises StartError."""
    if not settings.store_cache_dir:
        return None
    try:
        # service.stores is imported here and not at the top, because it imports obstore, an optional extra.
        from service.stores.cache import CacheInUse
        from service.stores.stores import Stores
    except ImportError as error:
        raise StartError(
            f"--store_cache_dir needs a package that is not installed ({error}): in a checkout, pip install '.[stores]'"
        ) from error
    folder = Path(settings.store_cache_dir).absolute()
    try:
        return Stores(
            folder,
            settings.store_cache_mib << 20,
            poll_s=settings.store_poll_wait_seconds,
            settle_s=settings.version_settle_s,
        )
    except CacheInUse as error:
        raise StartError(f"--store_cache_dir: {error}") from error
    except OSError as error:
        raise StartError(f"--store_cache_dir={folder} can not be used: {error.strerror}") from error
