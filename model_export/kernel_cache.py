"""Keeps compiled kernels where the server keeps them; import it before any module that holds kernels.

`adopt` runs nearly all kernels: compiling them takes one to two minutes, loading them less than a second.
"""

from __future__ import annotations

import sys

from service.configuration.settings_reading import kernel_cache_dir
from service.lookup import kernel_cache

# numba asks for the folder when a kernel's module is imported; later it would be too late.
if "service.lookup.kernels" not in sys.modules:
    kernel_cache.use(kernel_cache_dir())
