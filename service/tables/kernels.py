"""Chooses the kernels of lookups and searches: the native core's, or numpy's (many times slower) without the core.

Both have the same parameters and results, bit for bit; numpy_kernels has the documentation. Native kernels release the
GIL. The scores of neighbours may differ in the last bits.
"""

from __future__ import annotations

from typing import Any

from service.native_tables import NATIVE_TABLES
from service.tables import numpy_kernels, numpy_neighbors
from service.tables.kernel_codes import BFLOAT16 as BFLOAT16
from service.tables.kernel_codes import BLOCKS_OF_8 as BLOCKS_OF_8
from service.tables.kernel_codes import CLAMP as CLAMP
from service.tables.kernel_codes import DEFAULT_ROW as DEFAULT_ROW
from service.tables.kernel_codes import DROP as DROP
from service.tables.kernel_codes import DROP_NEGATIVE as DROP_NEGATIVE
from service.tables.kernel_codes import ERROR as ERROR
from service.tables.kernel_codes import FLOAT16 as FLOAT16
from service.tables.kernel_codes import FLOAT32 as FLOAT32
from service.tables.kernel_codes import FOUR_LANES as FOUR_LANES
from service.tables.kernel_codes import IN_ORDER as IN_ORDER
from service.tables.kernel_codes import INT4 as INT4
from service.tables.kernel_codes import INT8 as INT8
from service.tables.kernel_codes import MEAN as MEAN
from service.tables.kernel_codes import MISSING as MISSING
from service.tables.kernel_codes import OK as OK
from service.tables.kernel_codes import SEGMENT_MEAN as SEGMENT_MEAN
from service.tables.kernel_codes import SQRTN as SQRTN
from service.tables.kernel_codes import SUM as SUM
from service.tables.kernel_codes import TOO_MANY as TOO_MANY
from service.tables.kernel_codes import WRAP as WRAP

_chosen: Any = NATIVE_TABLES or numpy_kernels
gather, combine, sequence = _chosen.gather, _chosen.combine, _chosen.sequence
neighbors = (NATIVE_TABLES or numpy_neighbors).neighbors
