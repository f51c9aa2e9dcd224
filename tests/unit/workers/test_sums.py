"""Sums over workers that come and go, worked out by hand."""

from __future__ import annotations

import pytest
from service.workers.exposition import Number, parse
from service.workers.sums import Sums

from tests.unit.workers.test_backoff import Clock


def told(requests: Number = 0, version: int = 1, state: int = 30, *, has_series: bool = True) -> str:
    """Returns an exposition of one worker."""
    series = f'requests_total{{model="m",version="{version}"}} {requests}\n' if has_series else ""
    return (
        "# TYPE requests_total counter\n"
        f"{series}"
        "# TYPE ever_total counter\n"
        f'ever_total{{model="m"}} {requests}\n'
        "# TYPE embedding_server_version_state gauge\n"
        f'embedding_server_version_state{{model="m",version="{version}"}} {state}\n'
    )


def values(sums: Sums) -> dict[str, Number]:
    """Returns all series and their values."""
    return {series: value for family in sums.read() for series, value in family.samples.items()}


REQUESTS = 'requests_total{model="m",version="1"}'
EVER = 'ever_total{model="m"}'


def test_counters_and_histograms_add_up() -> None:
    sums = Sums(Clock())
    histogram = '# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum{} 3.5\nh_count{} 2\n'
    for worker in (1, 2):
        sums.update(worker, parse(told(worker) + histogram))
    found = values(sums)
    assert (found[REQUESTS], found[EVER]) == (3, 3)
    assert (found['h_bucket{le="1"}'], found['h_bucket{le="+Inf"}']) == (2, 4)
    assert (found["h_sum{}"], found["h_count{}"]) == (7, 4)


def test_limits_add_up_as_what_they_bound_does() -> None:
    sums = Sums(Clock())
    for part in ("bytes", "rows"):
        for worker in (1, 2):
            limit, held = f"embedding_server_in_flight_limit_{part}", f"embedding_server_in_flight_{part}"
            text = f'# TYPE {limit} gauge\n{limit}{{}} 100\n# TYPE {held} gauge\n{held}{{model="m"}} {worker}\n'
            sums.update(worker, parse(told() + text))
        found = values(sums)
        assert (found[f"{limit}{{}}"], found[f'{held}{{model="m"}}']) == (200, 3)


def test_a_worker_that_is_gone_leaves_what_it_counted() -> None:
    sums = Sums(Clock())
    sums.update(1, parse(told(5)))
    sums.update(2, parse(told(7)))
    sums.ended(1)
    assert values(sums)[REQUESTS] == 12
    sums.update(3, parse(told(1)))
    assert values(sums)[REQUESTS] == 13
    sums.ended(2)
    sums.ended(3)
    assert values(sums)[EVER] == 13


def test_nothing_goes_back_while_a_version_ends_in_one_worker_after_the_other() -> None:
    clock = Clock()
    sums = Sums(clock)
    seen = []
    sums.update(1, parse(told(5)))
    sums.update(2, parse(told(7)))
    seen.append(values(sums)[REQUESTS])
    sums.update(1, parse(told(5, 2, has_series=False)))
    seen.append(values(sums)[REQUESTS])
    clock.now_s = 1000
    sums.update(2, parse(told(8)))
    seen.append(values(sums)[REQUESTS])
    assert seen == [12, 12, 13]


def test_a_version_that_no_worker_has_takes_its_series_along_in_the_end() -> None:
    clock = Clock()
    sums = Sums(clock)
    sums.update(1, parse(told(5)))
    values(sums)
    sums.update(1, parse(told(6, 2, has_series=False)))
    clock.now_s = 59
    assert values(sums)[REQUESTS] == 5
    clock.now_s = 61
    found = values(sums)
    assert REQUESTS not in found
    assert found[EVER] == 6
    # And begins anew where it comes back.
    sums.update(1, parse(told(1)))
    assert values(sums)[REQUESTS] == 1


def test_while_all_workers_are_being_replaced_versions_are_kept() -> None:
    clock = Clock()
    sums = Sums(clock)
    sums.update(1, parse(told(5)))
    values(sums)
    sums.ended(1)
    clock.now_s = 1000
    assert values(sums)[REQUESTS] == 5
    sums.update(2, parse(told(0, state=20, has_series=False)))
    clock.now_s = 2000
    assert values(sums)[REQUESTS] == 5


def test_paths_of_warm_ups_go_with_their_versions() -> None:
    clock = Clock()
    sums = Sums(clock)
    warmups = '# TYPE w counter\nw{{model_path="/m/{}",status="OK"}} 1\n'
    sums.update(1, parse(told() + warmups.format(1)))
    values(sums)
    sums.update(1, parse(told() + warmups.format(2)))
    assert values(sums)['w{model_path="/m/1",status="OK"}'] == 1
    clock.now_s = 61
    found = values(sums)
    assert 'w{model_path="/m/1",status="OK"}' not in found
    assert found['w{model_path="/m/2",status="OK"}'] == 1


def test_sums_of_floats_do_not_go_back_by_a_rounding() -> None:
    # 0.1 + 0.2 + 0.3 is 0.6000000000000001 from the left and 0.6 from the right.
    sums = Sums(Clock())
    text = "# TYPE s_total counter\ns_total {}\n"
    for worker, part in enumerate((0.1, 0.2, 0.3)):
        sums.update(worker, parse(text.format(part)))
    seen = [values(sums)["s_total"]]
    sums.ended(0)
    seen.append(values(sums)["s_total"])
    assert seen[0] == 0.6000000000000001
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("states", "shown"),
    [((30, 30), 30), ((20, 30), 20), ((30, 40), 30), ((50, 30), 50), ((40, 10), 10)],
    ids=repr,
)
def test_a_version_is_available_when_it_is_so_in_all(states: tuple[int, ...], shown: int) -> None:
    sums = Sums(Clock())
    for worker, state in enumerate(states):
        sums.update(worker, parse(told(state=state)))
    assert values(sums)['embedding_server_version_state{model="m",version="1"}'] == shown


def test_gauges_follow_their_rules_and_do_not_outlive_their_worker() -> None:
    sums = Sums(Clock())
    text = (
        "# TYPE embedding_server_requests_in_flight gauge\nembedding_server_requests_in_flight {0}\n"
        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {0}\n"
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {0}\n"
        "# TYPE python_info gauge\npython_info {0}\n"
    )
    for worker, value in ((1, 2), (2, 5)):
        sums.update(worker, parse(text.format(value)))
    assert list(values(sums).values()) == [7, 7, 2, 5]
    sums.ended(2)
    assert list(values(sums).values()) == [2, 2, 2, 2]
