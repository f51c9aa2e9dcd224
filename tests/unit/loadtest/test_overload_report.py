"""The bench loadtest.bench.overload writes rows and draws a picture of them."""

from __future__ import annotations

from loadtest.bench.overload_report import HEAD, Load, Waits, picture


def load(kind: str, factor: float, goodput: float) -> Load:
    """Returns a load with a capacity of 100 answers a second."""
    same, light = Waits([0.010, 0.020], [0.001, 0.003]), Waits([0.002], failed=1)
    health = {"grpc_health": Waits([0.004]), "http_health": Waits()}
    return Load(kind, factor, 100.0, goodput, 24.25, same=same, light=light, **health, recovered_s=0.05)


def test_a_row_has_the_figures_under_their_names() -> None:
    names = [cell.strip() for cell in HEAD.splitlines()[0].strip("|").split("|")]
    cells = [cell.strip() for cell in load("strings", 10, 93.0).row().strip("|\n").split("|")]
    assert dict(zip(names, cells, strict=True)) == {
        "work": "strings",
        "asked, x capacity": "10",
        "capacity/s": "100",
        "goodput / capacity": "0.93",
        "connection threads us/request": "24.2",
        "answers p99 ms": "20.0",
        "refusals p50, p99 ms": "2.0, 3.0",
        "health gRPC, HTTP p99 ms": "4.0, -",
        "one row p99 ms": "2.0",
        "recovered s": "0.05",
        "failed": "1",
    }


def test_the_picture_has_a_line_for_each_kind() -> None:
    kinds = ("strings", "tower")
    svg = picture([load(kind, factor, 93.0) for kind in kinds for factor in (10, 1.5)])
    assert svg.startswith("<svg ") and svg.count("<polyline") == 2
    assert ">strings</text>" in svg and ">tower</text>" in svg
