"""Says which row of a table an id reads, also of a table whose variable is saved in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_export.adoption.key_evaluation import Evaluation
from model_export.adoption.key_graph import Known, NotRead, Within
from model_export.adoption.policies import NO_PART
from model_export.adoption.reading import Reading

Look = Callable[[Evaluation], tuple[Known, ...]]


def look_at_rows(reading: Reading, conditions: Sequence[str], vocabulary_size: int) -> Look:
    """Returns a function that finds the row of an interval's ids, and the values of the conditions by which ids count.

    Raises:
      NotRead: the graph reads only a part of the table, or distributes ids to parts in an unknown way.
    """
    find = _of_parts if reading.parts or len(reading.read.gathers) > 1 else _of_whole
    find_row = find(reading, vocabulary_size)
    return lambda evaluation: (find_row(evaluation), *(evaluation.of(condition) for condition in conditions))


def _of_whole(reading: Reading, size: int) -> Callable[[Evaluation], Known]:
    (gather,) = reading.read.gathers
    if gather.first_row:
        raise NotRead("only a part of the table is read")

    def find(evaluation: Evaluation) -> Known:
        row = evaluation.of(gather.ids)
        evaluation.is_within(row, size)
        return row

    return find


def _of_parts(reading: Reading, size: int) -> Callable[[Evaluation], Known]:
    if len(reading.parts) != 1:
        raise NotRead("ids are not distributed to the parts of a table by one DynamicPartition")
    ((numbers, count),) = reading.parts.items()
    owner = {reading.part_of(gather.ids): gather for gather in reading.read.gathers}
    if sorted(owner) != list(range(count)):
        raise NotRead("the parts of a table are not read by one part of the ids each")
    firsts = [owner[part].first_row for part in range(count)]
    sizes = [after - first for first, after in zip(firsts, [*firsts[1:], size], strict=True)]
    if min(sizes) < 0:
        raise NotRead("the parts of a table are read in another order than they have")

    def find(evaluation: Evaluation) -> Known:
        if not evaluation.is_within(evaluation.of(numbers), count):
            return NO_PART
        part = evaluation.fixed(numbers)
        within = evaluation.of(owner[part].ids)
        if evaluation.is_within(within, sizes[part]):
            return evaluation.shifted(within, firsts[part])
        return Within(size, size, "DynamicPartition")

    return find
