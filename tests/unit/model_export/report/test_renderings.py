"""Each of the three renderings of a report is complete, well formed, and safe for any content of the artifact."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from model_export.parity.comparison import DeviceDifference, OutputParity, ParityReport, SignatureParity
from model_export.report.build import ReportOptions, build_report
from model_export.report.commands import to_json
from model_export.report.document import STATISTICS_FOLDER, ArtifactReport
from model_export.report.html import to_html
from model_export.report.page import data
from model_export.report.text import WIDTH, to_text, verification_text
from model_export.row_names import LabelFile
from tests.toy_model import rewrite_manifest, write_bundle
from tests.unit.model_export.report.test_statistics import write_statistics

EVIL = '<script>alert("1")</script>\x1b[31m'


@pytest.fixture
def report(artifact: Path) -> ArtifactReport:
    """Returns a report with every part: labels, curves, statistics, parity, and disagreements."""
    write_statistics(artifact / STATISTICS_FOLDER)
    (artifact / "labels.csv").write_text("red,warm,Red\nblue,cold,Blue\ngreen,cold,Green\n")
    history = [{"epoch": n, "train_loss": 2 / n, "held_out_loss": 3 / n} for n in (1, 2, 3)]
    rewrite_manifest(artifact, lambda m: m.update(provenance={"dataset": {"name": EVIL}, "history": history}))
    difference = DeviceDifference("tags", "lookup", "cut at 3 ids", 2, 9, 0.5, {"ids": [1, 2, 3, 1]})
    parity = ParityReport(
        {"lookup": SignatureParity("lookup", "oracle", 7, {"tags": OutputParity(9, 1e-7, 2e-7)}, 3, (difference,))},
        {"lookup": SignatureParity("lookup", "nothing", 1)},
        ("not all was checked",),
    )
    options = ReportOptions(has_projections=True, labels=(LabelFile("tag", artifact / "labels.csv"),))
    return dataclasses.replace(
        build_report(artifact, options), parity=parity, disagreements=("signature 'x' differs by 3", EVIL)
    )


def test_the_text_fits_a_terminal_and_tells_everything(report: ArtifactReport) -> None:
    text = to_text(report)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(line.isprintable() for line in text.splitlines())
    for words in (
        "signature 'x' differs by 3",
        "1 of 5 rows are all zeros",
        "tag  4 x 3 float32, 48 B",
        "read by tags, tags_sqrtn, tags_sum",
        "takes 3 strings in assets/tag.txt",
        "lookup_tpu_tensor_core  (lookup on tpu_tensor_core, padded to 1, 4 rows)",
        "tags__values int64 [?]",
        "at most 3 ids (a longer row is refused)",
        "7 requests: its graph in TensorFlow against the oracle, 3 rightly refused",
        "tags differs from lookup in 2 of 9 rows by up to 0.5: cut at 3 ids; such as ids [1, 2, 3, 1]",
        "lookup of {serve,tpu}, lowered to a CPU  1 requests only run: no reference answers",
        "note: not all was checked",
        "train_loss  2 at epoch 1 -> 0.6667 at 3; lowest 0.6667 at 3",
        "1 of 2 steps; 2 examples with 3 ids, 2 each, 2 at most; 2 of 4 rows seen",
        "hot ids 3 (2), 1 (1)",
        "name <script>",
    ):
        assert words in re.sub(r"\s+", " ", text) or words in text, words


def test_a_verification_ends_in_its_faults_or_says_that_there_are_none(report: ArtifactReport) -> None:
    checked = ParityReport({"lookup": SignatureParity("lookup", "oracle", 7)})
    shown = verification_text(Path("m/1"), checked, ())
    assert "7 requests: its graph in TensorFlow against the oracle" in shown
    assert shown.endswith("m/1: files, index, manifest and every signature agree\n")
    assert verification_text(Path("m/1"), None, ("a differs", "b differs")).endswith("  ! a differs\n  ! b differs\n")


@pytest.mark.parametrize(
    "unchecked", [SignatureParity("predict", "nothing", 0), SignatureParity("predict", "oracle", 0)]
)
def test_a_signature_that_was_not_compared_is_never_said_to_agree(
    report: ArtifactReport, unchecked: SignatureParity
) -> None:
    parity = ParityReport({"lookup": SignatureParity("lookup", "oracle", 7), "serving_default": unchecked})
    verified = dataclasses.replace(report, parity=parity, disagreements=())
    for shown in (
        verification_text(Path("m/1"), parity, ()),
        to_text(verified),
        " ".join(Page(to_html(verified)).words),
    ):
        assert "every signature agree" not in shown
        assert "NOT compared: serving_default" in re.sub(r"\s+", " ", shown)


def test_norms_in_the_text_are_those_of_the_table(report: ArtifactReport) -> None:
    # Row i of "user" is [i, 10 i], so its norm is i * sqrt(101): 0, 10.05, 20.1, 30.15, 40.2.
    assert "min 0  5% 2.01  median 20.1  mean 20.1  95% 38.19  max 40.2" in to_text(report)


def test_the_json_has_its_documented_keys_and_is_strict(report: ArtifactReport) -> None:
    document = json.loads(to_json(report), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(document) == [
        *("report_version", "artifact", "nbytes", "has_manifest", "files", "meta_graphs", "tables", "features"),
        *("curves", "statistics", "provenance", "parity", "disagreements", "findings", "notes"),
    ]
    user, tag = document["tables"]
    assert (user["health"]["dead"], user["health"]["nan"]) == (
        {"count": 1, "first_ids": [0]},
        {"count": 0, "first_ids": []},
    )
    assert tag["projection"]["labels"] == ["warm", "cold", "cold"] and tag["projection"]["ids"] == [1, 2, 3]
    assert tag["projection"]["names"] == ["Red", "Green", "Blue"]
    # Row 0 of table "tag" has no label, so the projection has no point for it, but the lists of nearest rows name it.
    assert [row for row, _ in tag["projection"]["nearest"]["1"]] == [2, 3, 0]
    assert tag["projection"]["nearest_names"] == {"0": "(any other key)"}
    assert document["parity"]["signatures"]["lookup"]["outputs"]["tags"]["rows"] == 9
    assert document["statistics"][0]["hot_ids"] == [[3, 2], [1, 1]]
    assert document["meta_graphs"][0]["signatures"][1]["batch_sizes"] == [1, 4]
    assert document["curves"][0]["points"][0] == [1.0, 2.0]
    assert document["provenance"]["dataset"]["name"] == EVIL


def test_a_number_that_is_none_is_null(report: ArtifactReport) -> None:
    sick = dataclasses.replace(report, provenance={"loss": float("nan"), "best": float("inf"), "list": [float("-inf")]})
    assert json.loads(to_json(sick))["provenance"] == {"loss": None, "best": None, "list": [None]}


class Page(HTMLParser):
    """Collects a page's tags and texts, and checks that each element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        self.words.append(data)


def test_the_page_is_well_formed_needs_nothing_else_and_runs_its_own_script_only(report: ArtifactReport) -> None:
    text = to_html(report)
    page = Page(text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text
    assert page.tags.count("script") == 1 + text.count('<script type="application/json">') == 3
    assert not {"link", "img", "iframe", "object", "base", "a"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert (
        "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        and "https://" not in text
        and "url(" not in text
    )
    assert "default-src 'none'" in text and "prefers-color-scheme:dark" in text
    assert "\x1b" not in text and '<script>alert("1")</script>\\x1b[31m' in page.words


def test_the_page_tells_everything(report: ArtifactReport) -> None:
    page = Page(to_html(report))
    words = " ".join(page.words)
    pictures = 2 + 2 + 1 + 4  # pictures: norms and projections of 2 tables, one with both losses, and 4 of statistics
    assert len([1 for name, value in page.attributes if (name, value) == ("role", "img")]) == pictures
    # The page draws the points of a projection in an <svg> inside the projection's <svg>.
    assert page.tags.count("svg") == pictures + 2
    for expected in (
        "toy/1",
        "signature 'x' differs by 3",
        "Its rows in two dimensions (PCA), by label",
        "train_loss, held_out_loss",
        "tags differs from lookup in 2 of 9 rows",
        "Balance, partition strategy mod",
        "lookup (lookup on cpu)",
        "warm (1)",
    ):
        assert expected in words, expected


def test_a_page_without_pictures_of_rows_has_no_script(artifact: Path) -> None:
    text = to_html(build_report(artifact))
    assert "script" not in text


def test_names_in_the_data_of_the_script_are_no_html(artifact: Path) -> None:
    (artifact / "assets" / "tag.txt").write_text("red\n</script><script>alert(1)\nblue\n")
    projection = build_report(artifact, ReportOptions(has_projections=True)).tables[1].projection
    assert projection is not None and "</script><script>alert(1)" in projection.names
    # The sample has all rows of the toy model, so the test itself adds a name of a row outside the sample.
    shown = data({"names": {9: projection.names[2]}})
    assert shown.count("<") == 2 and json.loads(re.sub("<[^>]*>", "", shown)) == {"names": {"9": projection.names[2]}}


RENDERERS = pytest.mark.parametrize("render", [to_text, to_json, lambda report: str(Page(to_html(report)).words)])


@RENDERERS
def test_a_foreign_model_without_variables(artifact: Path, render: Callable[[ArtifactReport], str]) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    for path in (artifact / "variables").iterdir():
        path.unlink()
    text = render(build_report(artifact, ReportOptions(has_projections=True)))
    assert "model-export adopt" in re.sub(r"\s+", " ", text) and "serving_default" in text


@RENDERERS
def test_tables_of_every_odd_kind(artifact: Path, render: Callable[[ArtifactReport], str]) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    tables = {
        "all_nan": np.full((3, 2), np.nan, np.float32),
        "one_row": np.ones((1, 2), np.float32),
        "one_number": np.ones((1, 1), np.float32),
        "same": np.ones((9, 2), np.float32),
        "zeros": np.zeros((9, 2), np.float32),
        "narrow": np.arange(9, dtype=np.float32).reshape(9, 1),
    }
    write_bundle(artifact / "variables" / "variables", tables)
    text = render(build_report(artifact, ReportOptions(has_projections=True)))
    assert all(name in text for name in tables)


@RENDERERS
def test_a_damaged_index_is_told_and_the_rest_shown(artifact: Path, render: Callable[[ArtifactReport], str]) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    (artifact / "variables" / "variables.index").write_bytes(b"no index")
    text = render(build_report(artifact))
    assert "Variables are not listed" in text and "serving_default" in text


@RENDERERS
def test_fast_reads_no_table(artifact: Path, render: Callable[[ArtifactReport], str]) -> None:
    (artifact / "variables" / "variables.data-00000-of-00001").write_bytes(b"")
    text = render(build_report(artifact, ReportOptions(reads_tables=False)))
    assert "were not read, as asked" in text and "was not read:" not in text
