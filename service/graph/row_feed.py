"""Makes the arrays that replace a graph's lookups in a run; rows that the graph would concatenate share one array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.graph.joined_rows import JoinedRows
from service.graph.table_rows import FeatureRows, RowSource, numpy_dtype
from service.tables.row_blocks import BlockLayout, BlockPart, RowBlocks
from service.tables.table import MappedTable
from service.types import Array, Tensors

# Maximum number of cached buffer layouts, one for each combination of request shapes: clients choose the shapes, and
# must not fill the memory.
_MOST_LAYOUTS = 256
_FLOAT_BYTES = 4

_Shape = tuple[int, ...]


class _Copied(NamedTuple):
    """A source of rows that are copied into an array unchanged.

    id_shape: shape of the ids for one row; None: unknown.
    """

    source: RowSource
    block: int
    id_shape: _Shape | None


class _Combined(NamedTuple):
    """A source of rows that a kernel combines, and the columns of a float32 array to which the rows are written."""

    source: RowSource
    block: int
    columns: slice


class _View(NamedTuple):
    """The place of a fed array in the buffer that several fed arrays share: its first byte, its shape and its dtype."""

    begin: int
    shape: _Shape
    dtype: np.dtype[Any]


class _Layout(NamedTuple):
    """The layout of the buffer that holds all fed arrays, for requests with the same shapes.

    views: one per fed tensor whose block is written. combined: the places of the combined sources.
    """

    blocks: BlockLayout
    views: tuple[_View, ...]
    combined: tuple[_View, ...]


class RowFeed:
    """Looks up the rows of a request, and writes them into the arrays that replace lookups in a graph's run.

    Concurrency: any thread.

    blocks: for each block, the sources whose rows it joins; each fed tensor has the bytes of one block.
    tensors: names of the fed tensors, in the order of joined().

    Args:
      sources: tensor -> its rows.
      fed: the tensors that are fed in place of all of these.
    """

    def __init__(self, sources: Mapping[str, RowSource], fed: Mapping[str, JoinedRows]) -> None:
        self._sources = sources
        # An array with the rows of one lookup that RowBlocks can not copy, such as combined rows, is fed as the lookup
        # returns it; all other arrays lie in the buffer of RowBlocks.
        alone = {name: value for name, value in fed.items() if _is_alone(sources, value.parts)}
        written = {name: value for name, value in fed.items() if name not in alone}
        self.tensors = (*written, *alone)
        self.blocks = tuple(dict.fromkeys(value.parts for value in (*written.values(), *alone.values())))
        self._written = [(self.blocks.index(value.parts), value) for value in written.values()]
        self._alone = [(sources[value.parts[0]], value.shape) for value in alone.values()]
        self._copied: list[_Copied] = []
        self._combined: list[_Combined] = []
        blocks = [parts for parts in self.blocks if not _is_alone(sources, parts)]
        self._writer = RowBlocks([self._add(number, parts) for number, parts in enumerate(blocks)])
        self._widths = [sum(math.prod(self._row_shape(name)) for name in parts) for parts in blocks]
        self._layouts: dict[tuple[_Shape, ...], _Layout | None] = {}

    def joined(self, inputs: Tensors, computed: Mapping[str, Array]) -> list[Array] | None:
        """Returns the arrays to feed to the tower; None if the shapes contradict each other, which the tower refuses.

        Args:
          computed: tensor of the graph -> the ids in it.

        Raises:
          InvalidRequest: an id has no row, or a key no id.
        """
        ids = [copied.source.ids(inputs, computed) for copied in self._copied]
        combined = [one.source.rows(inputs, computed) for one in self._combined]
        shapes = tuple([array.shape for array in (*ids, *combined)])
        layout = self._layouts[shapes] if shapes in self._layouts else self._lay_out(shapes)
        if layout is None:
            return None
        out = self._writer.write(ids, layout.blocks)
        if isinstance(out, int):
            # `out` is an int only if an id has no row: it is the number of the source of rows with this id, and rows()
            # of the source raises an InvalidRequest that names the id.
            self._copied[out].source.rows(inputs, computed)
            return None
        for rows, one, view in zip(combined, self._combined, layout.combined, strict=True):
            # A sequence's vectors, [B, L, D], lie one behind the other in a row.
            np.ndarray(view.shape, view.dtype, out, view.begin)[:, one.columns] = rows.reshape(
                len(rows), math.prod(rows.shape[1:])
            )
        arrays = [np.ndarray(shape, dtype, out, begin) for begin, shape, dtype in layout.views]
        for source, shape in self._alone:
            rows = source.rows(inputs, computed)
            arrays.append(rows if shape is None or rows.shape[1:] == shape else rows.reshape(len(rows), *shape))
        return arrays

    def apart(self, inputs: Tensors, computed: Mapping[str, Array]) -> list[Array]:
        """Returns the looked-up rows of each lookup as one array, not joined with other rows; raises InvalidRequest."""
        return [source.rows(inputs, computed) for source in self._sources.values()]

    def _row_shape(self, name: str) -> _Shape:
        source = self._sources[name]
        return source.row_shape or (source.table.info.embedding_dim,)

    def _add(self, number: int, parts: Sequence[str]) -> list[BlockPart | int]:
        """Adds a fed array's sources to _copied or _combined; returns each one's BlockPart, or its width in bytes."""
        block: list[BlockPart | int] = []
        column = 0
        for name in parts:
            source, shape = self._sources[name], self._row_shape(name)
            width = math.prod(shape)
            if _is_copied(source):
                self._copied.append(_Copied(source, number, None if source.row_shape is None else shape[:-1]))
                block.append(_part(source, width // shape[-1]))
            else:
                self._combined.append(_Combined(source, number, slice(column, column + width)))
                block.append(_FLOAT_BYTES * width)
            column += width
        return block

    def _lay_out(self, shapes: tuple[_Shape, ...]) -> _Layout | None:
        layout = self._new_layout(shapes)
        if len(self._layouts) < _MOST_LAYOUTS:
            self._layouts[shapes] = layout
        return layout

    def _new_layout(self, shapes: tuple[_Shape, ...]) -> _Layout | None:
        rows: dict[int, int] = {}
        for shape, copied in zip(shapes, self._copied, strict=False):
            if copied.id_shape is None:
                rows[copied.block] = math.prod(shape)
            elif not shape or shape != (rows.setdefault(copied.block, shape[0]), *copied.id_shape):
                return None
        for shape, one in zip(shapes[len(self._copied) :], self._combined, strict=True):
            if shape[0] != rows.setdefault(one.block, shape[0]):
                return None
        blocks = self._writer.lay_out([rows[number] for number in range(len(self._widths))])
        views = []
        for number, value in self._written:
            dtype = numpy_dtype(self._sources[value.parts[0]].table)
            if value.shape is None:
                place = next(i for i, copied in enumerate(self._copied) if copied.block == number)
                shape = (*shapes[place], self._widths[number])
            else:
                shape = (rows[number], *value.shape)
            views.append(_View(blocks.begins[number], shape, dtype))
        combined = tuple(
            _View(blocks.begins[one.block], (rows[one.block], self._widths[one.block]), np.dtype(np.float32))
            for one in self._combined
        )
        return _Layout(blocks, tuple(views), combined)


def _is_alone(sources: Mapping[str, RowSource], parts: Sequence[str]) -> bool:
    return len(parts) == 1 and not _is_copied(sources[parts[0]])


def _is_copied(source: RowSource) -> bool:
    is_single = not isinstance(source, FeatureRows) or source.claim.is_single
    return is_single and isinstance(source.table, MappedTable) and RowBlocks.takes(source.table)


def _part(source: RowSource, per_row: int) -> BlockPart:
    # _part() is called only for sources for which _is_copied() is True; these read a MappedTable.
    assert isinstance(source.table, MappedTable)
    if not isinstance(source, FeatureRows):
        return BlockPart(source.table, per_row=per_row)
    feature = source.claim.feature
    return BlockPart(source.table, feature.on_bad_id, feature.default_row, per_row)
