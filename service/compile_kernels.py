"""Compiles every kernel ahead of the first start, as `make` and an image do when they install.

EMB_KERNEL_CACHE_DIR=/opt/kernel-cache python -m service.compile_kernels
"""

from __future__ import annotations

import importlib

from service.configuration.settings_reading import kernel_cache_dir
from service.lookup import kernel_cache

# Importing compiles, for all signatures are given in the sources.
MODULES = (
    "service.direct.float_text",
    "service.direct.gather",
    "service.direct.json_scan",
    "service.direct.json_text",
    "service.direct.json_tokens",
    "service.direct.scan",
    "service.direct.varints",
    "service.files.crc32c",
    "service.lookup.fingerprint",
    "service.lookup.kernels",
    "service.lookup.key_index",
    "service.lookup.row_blocks",
    "service.lookup.summation",
)


def main() -> None:
    """Compiles into the configured folder."""
    kernel_cache.use(kernel_cache_dir())
    for name in MODULES:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
