"""Memory that is used again is never somebody else's, and there is never much of it."""

from __future__ import annotations

import pytest
from service.direct import rooms
from service.direct.rooms import Rooms, starts

SHAPES = ((3, 5), (3, 2, 4), (3, 1))


def test_arrays_are_aligned_and_lie_where_starts_says() -> None:
    arrays, address, num_bytes = Rooms().take(SHAPES)
    begins, end = starts(SHAPES)
    assert num_bytes == end
    assert tuple(array.shape for array in arrays) == SHAPES
    assert [array.ctypes.data for array in arrays] == [address + begin for begin in begins]
    assert all(array.ctypes.data % 64 == 0 and array.flags.c_contiguous for array in arrays)


def test_what_is_not_given_back_is_not_given_out() -> None:
    free = Rooms()
    taken = [free.take(SHAPES) for _ in range(3)]
    free.give_back(SHAPES, taken[1])
    assert free.take(((3, 5),))[1] != taken[1][1]
    assert free.take(SHAPES) is taken[1]
    assert free.take(SHAPES)[1] not in {room[1] for room in taken}


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_KEPT_BYTES", 1000)
    free = Rooms()
    for count in range(1, 500):
        shapes = ((count, 1),)
        room = free.take(shapes)
        free.give_back(shapes, room)
        kept = sum(room[2] for of_shapes in free._free.values() for room in of_shapes)
        assert kept == free._free_bytes <= 1000
        # What came last is kept, if it is small enough at all.
        assert (free.take(shapes) is room) == (4 * count <= 1000)
