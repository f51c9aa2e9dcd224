"""Shows the settings in the log and on the status page, without the secrets in them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from service.configuration.settings import Settings
from service.remote.address import without_password

_SECRET = re.compile(r"token|secret|passw|credential|private|api_?key", re.IGNORECASE)
_HIDDEN = "(hidden)"


def shown_settings(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns all settings by name, each with whether it has its default; secret values are hidden."""
    shown = {}
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        is_secret = bool(value) and _SECRET.search(one.name) is not None and isinstance(value, str)
        if isinstance(value, str):
            value = without_password(value)
        shown[one.name] = {"value": _HIDDEN if is_secret else value, "is_default": value == one.default}
    return shown
