"""Bytes in flight are limited for each model, refused above the limits, and given back in the end."""

from __future__ import annotations

import pytest

from service.engine.admission import Admission, Limits, Reservation
from service.errors import Overloaded
from tests.unit.engine.recording_admission import RecordingAdmission


def filled(admission: Admission, model: str, size: int) -> int:
    """Reserves bytes in pieces until the admission refuses; returns how many pieces it got."""
    pieces = 0
    while True:
        try:
            admission.reserve_bytes(model, size)
        except Overloaded:
            return pieces
        pieces += 1


def test_a_model_alone_gets_four_fifths_and_the_next_ones_find_room() -> None:
    admission = Admission(Limits(bytes=1000))
    # A model may add a piece while it holds at most four times the free bytes: 800 <= 4 * 200 lets piece 81 in.
    assert filled(admission, "flood", 10) == 81
    # 190 bytes are free, and a model may add a piece while m <= 4 * (190 - m), which holds up to m = 152.
    assert filled(admission, "other", 10) == 16
    assert filled(admission, "third", 1) == 25
    assert sum(admission.held().values()) <= 1000


def test_a_refusal_names_the_limit_and_is_counted_with_model_and_reason() -> None:
    observer = RecordingAdmission()
    admission = Admission(Limits(bytes=100), observer)
    admission.reserve_bytes("a", 50)
    with pytest.raises(Overloaded, match="50 bytes of requests and answers are in flight, its limit is 100"):
        admission.reserve_bytes("b", 51)
    with pytest.raises(Overloaded, match="50 bytes"):
        admission.check_bytes("b", 51)
    assert observer.refusals == [("b", "bytes"), ("b", "bytes")]


def test_what_was_given_back_can_be_taken_again_and_leaves_nothing_behind() -> None:
    admission = Admission(Limits(bytes=100))
    for _ in range(3):
        admission.reserve_bytes("a", 100)
        assert admission.held() == {"a": 100}
        admission.release("a", 100)
    assert admission.held() == {}


def test_room_is_given_back_by_its_last_user() -> None:
    admission = Admission(Limits(bytes=100))
    reservation = Reservation(admission, "a")
    reservation.grow(30)
    reservation.grow(20)
    reservation.add_user()
    reservation.drop_user()
    assert admission.held() == {"a": 50}
    reservation.drop_user()
    assert admission.held() == {}


def test_room_that_is_refused_keeps_what_it_had() -> None:
    admission = Admission(Limits(bytes=100))
    reservation = Reservation(admission, "a")
    reservation.grow(60)
    with pytest.raises(Overloaded):
        reservation.grow(60)
    assert admission.held() == {"a": 60}
    reservation.drop_user()
    assert admission.held() == {}
