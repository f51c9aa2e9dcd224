"""The report's sections: findings, history, parity, policies, statistics and the SavedModel."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.parity.comparison import DeviceDifference, OutputParity, ParityReport, SignatureParity
from model_export.report.build import (
    ReportOptions,
    build_report,
    curves,
    parity_from_json,
    read_meta_graphs,
    read_run_history,
)
from model_export.report.commands import to_json
from model_export.report.document import (
    STATISTICS_FOLDER,
    ArtifactReport,
    FeatureReport,
    SignatureReport,
    TensorReport,
    find_statistics,
    first_ids,
)
from model_export.report.page import data
from model_export.report.rendering import WIDTH, to_html, to_text, verification_text
from model_export.report.sections import bytes_words, lookup_words, signature_words, tensor_words, vocabulary_words
from model_export.row_names import LabelFile
from model_export.statistics.files import add_to_file
from model_export.statistics.table_health import Rows
from model_export.statistics.table_statistics import TableDescription, TableStatistics
from service.artifact.manifest import LookupFeature, Manifest, VocabularyEntry
from service.errors import ArtifactError
from tests.toy_model import SHARD, rewrite_manifest, write_bundle

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
        "Table tag",
        "4 x 3 float32, 48 B",
        "1 (20.0%) dead rows: all zeros, they add nothing to a lookup: row 0",
        "read by tags, tags_sqrtn, tags_sum",
        "tags table tag; takes 3 strings in assets/tag.txt",
        "lookup_tpu_tensor_core (lookup on tpu_tensor_core, padded to 1, 4 rows)",
        "tags__values int64 [?]",
        "at most 3 ids (a longer row is refused)",
        "lookup: 7 requests: its graph in TensorFlow against the oracle, 3 rightly refused",
        "tags differs from lookup in 2 of 9 rows by up to 0.5: cut at 3 ids; such as ids [1, 2, 3, 1]",
        "lookup of {serve,tpu}, lowered to a CPU: 1 requests only run: no reference answers",
        "lookup output tags; rows 9; max error 1.0e-07; relative 2.0e-07",
        "- not all was checked",
        "train_loss 2 at epoch 1 -> 0.6667 at 3, lowest 0.6667 at 3",
        "1 of 2 steps; 2 examples with 3 ids, 2 each, 2 at most; 2 of 4 rows seen",
        "Hot ids: times in the sample id 3 (2), id 1 (1)",
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
    assert "min 0, 5% 2.01, median 20.1, mean 20.1, 95% 38.19, max 40.2" in to_text(report)


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
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
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


def without_variables(artifact: Path) -> None:
    for path in (artifact / "variables").iterdir():
        path.unlink()


ODD_TABLES = {
    "all_nan": np.full((3, 2), np.nan, np.float32),
    "one_row": np.ones((1, 2), np.float32),
    "one_number": np.ones((1, 1), np.float32),
    "same": np.ones((9, 2), np.float32),
    "zeros": np.zeros((9, 2), np.float32),
    "narrow": np.arange(9, dtype=np.float32).reshape(9, 1),
}


@RENDERERS
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_variables, ["model-export adopt", "serving_default"]),
        (lambda artifact: write_bundle(artifact / "variables" / "variables", ODD_TABLES), [*ODD_TABLES]),
        (
            lambda artifact: (artifact / "variables" / "variables.index").write_bytes(b"no index"),
            ["Variables are not listed", "serving_default"],
        ),
    ],
    ids=["no variables", "odd tables", "damaged index"],
)
def test_a_foreign_model_is_shown_as_far_as_it_can_be_read(
    artifact: Path, render: Callable[[ArtifactReport], str], change: Callable[[Path], Any], words: list[str]
) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    change(artifact)
    text = re.sub(r"\s+", " ", render(build_report(artifact, ReportOptions(has_projections=True))))
    assert all(word in text for word in words)


@RENDERERS
def test_fast_reads_no_table(artifact: Path, render: Callable[[ArtifactReport], str]) -> None:
    (artifact / "variables" / "variables.data-00000-of-00001").write_bytes(b"")
    text = render(build_report(artifact, ReportOptions(reads_tables=False)))
    assert "were not read, as asked" in text and "was not read:" not in text


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (
            [{"epoch": 1, "train_loss": 2, "rmse": 1.5}, {"epoch": 2, "train_loss": 1.0, "rmse": None}],
            [("train_loss", "epoch", ((1.0, 2.0), (2.0, 1.0))), ("rmse", "epoch", ((1.0, 1.5),))],
        ),
        # Keras' history counts epochs from 0.
        ({"loss": [3.0, 2.0], "epoch": [0, 1]}, [("loss", "epoch", ((1.0, 3.0), (2.0, 2.0)))]),
        # Points are in order, and numbers only.
        (
            [{"step": 9, "loss": 1}, {"step": 3, "loss": 2}, {"step": 5, "loss": float("nan")}, 7, {"a": "b"}],
            [("loss", "step", ((3.0, 2.0), (9.0, 1.0)))],
        ),
        *((nothing, []) for nothing in (None, "x", 3, {"loss": "high"}, [])),
    ],
)
def test_each_metric_of_a_history_is_a_curve(history: object, expected: list[Any]) -> None:
    assert [(c.name, c.x_name, c.points) for c in curves(history)] == expected


def test_a_run_folder_without_a_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"run\.json"):
        read_run_history(tmp_path)
    (tmp_path / "run.json").write_text('{"history": [{"epoch": 1, "loss": 2.0}]}')
    assert curves(read_run_history(tmp_path))[0].points == ((1.0, 2.0),)


def test_what_the_exporter_writes_comes_back() -> None:
    difference = DeviceDifference("tags", "lookup", "cut at 3 ids", 2, 9, 0.5, {"ids": [1, 2, 3, 1]})
    signature = SignatureParity("lookup", "oracle", 7, {"tags": OutputParity(9, 1e-7, 2e-7)}, 3, (difference,))
    predict = SignatureParity("predict", "recorded answers", 2, {"score": OutputParity(4, 0.0, 0.0)})
    report = ParityReport({"lookup": signature, "serving_default": predict})
    assert parity_from_json(json.loads(json.dumps(report.manifest_json()))) == report


def test_what_is_not_understood_is_left_out() -> None:
    assert parity_from_json({}) is None
    assert parity_from_json({"note": "none was made"}) is None
    whole = {"kind": "lookup", "reference": "oracle", "cases": 2, "added by a later version": [4]}
    found = parity_from_json({"s": whole, "t": {**whole, "cases": "many"}, "u": {**whole, "outputs": {"o": 3}}})
    assert found == ParityReport({"s": SignatureParity("lookup", "oracle", 2)})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "x: one id per row, an id outside the table is refused"),
        ({"on_bad_id": "drop"}, "is dropped"),
        ({"on_bad_id": "drop_negative"}, "below 0 is dropped, any other refused"),
        ({"on_bad_id": "default_row", "default_row": 3}, "reads row 3"),
        ({"on_bad_id": "clamp"}, "reads the nearest row"),
        ({"row_splits": "s", "weights": "w", "combiner": "mean"}, "x s w: mean, "),
        ({"row_splits": "s", "combiner": "mean", "mean_divisor": "at_least_one"}, "divided by at least 1"),
        ({"row_splits": "s", "combiner": "sum", "max_ids_per_row": 4}, "at most 4 ids (a longer row is refused)"),
        (
            {"row_splits": "s", "combiner": "sum", "max_ids_per_row": 4, "on_too_many_ids": "truncate"},
            "at most 4 ids (a longer row is cut)",
        ),
        (
            {"row_splits": "s", "combiner": "sum", "on_nonpositive_weight": "drop"},
            "ids of weight 0 or less are left out",
        ),
        ({"row_splits": "s", "max_sequence_length": 5}, "sequence of 5, cut or padded with zeros"),
    ],
)
def test_a_lookup_in_words(fields: dict[str, object], words: str) -> None:
    assert words in lookup_words(LookupFeature(ids="x", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"first_id": 1, "oov_id": 0}, "9 strings in v.txt, rows from 1; any other is row 0"),
        ({"key_dtype": "int64"}, "9 integers in v.txt, rows from 0; any other is refused"),
        ({"on_oov": "drop"}, "any other is dropped"),
        ({"num_oov_buckets": 3}, "any other falls into one of 3 rows behind them"),
    ],
)
def test_a_vocabulary_in_words(fields: dict[str, object], words: str) -> None:
    entry = VocabularyEntry(file="v.txt", size=9, **fields)  # type: ignore[arg-type]
    assert words in vocabulary_words(FeatureReport("f", "t", "v", entry))
    assert vocabulary_words(FeatureReport("f", "t")) == "rows"


def test_shapes_and_devices_in_words() -> None:
    assert tensor_words(TensorReport("x", "int64", (None, 3))) == "int64 [?, 3]"
    assert tensor_words(TensorReport("x", "float32", (), is_optional=True)) == "float32 [], optional"
    assert tensor_words(TensorReport("x", "string", None)) == "string [...]"
    signature = SignatureReport("s", "lookup", "", (), (), "tpu_tensor_core", (1, 8))
    assert signature_words(signature) == "lookup on tpu_tensor_core, padded to 1, 8 rows"


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (120832, "120.8 kB"), (2_500_000, "2.5 MB"), (7 * 10**12, "7.0 TB")]
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert bytes_words(size) == words


GOLDEN = Path(__file__).resolve().parents[5] / "shared" / "golden" / "tpu_estimator_2_15" / "tensor_core"


def test_signatures_have_what_pb_and_manifest_say(artifact: Path) -> None:
    (graph,) = read_meta_graphs(artifact, Manifest.read(artifact))
    assert graph.tags == ("serve",)
    lookup, padded, predict = graph.signatures
    assert [(s.name, s.kind, s.device, s.batch_sizes) for s in graph.signatures] == [
        ("lookup", "lookup", "cpu", ()),
        ("lookup_tpu_tensor_core", "lookup", "tpu_tensor_core", (1, 4)),
        ("serving_default", "predict", None, ()),
    ]
    assert {t.name: (t.dtype, t.shape) for t in padded.inputs}["tags__values"] == ("int32", (None,))
    assert {t.name: (t.dtype, t.shape) for t in lookup.outputs}["tags"] == ("float32", (None, 3))
    assert padded.features["tags"].max_ids_per_row == 3 and predict.method == "tensorflow/serving/predict"


def test_without_a_manifest_signatures_are_graphs(artifact: Path) -> None:
    (graph,) = read_meta_graphs(artifact, None)
    assert {(s.kind, s.device, len(s.features)) for s in graph.signatures} == {("graph", None, 0)}


def test_the_exports_of_tensorflow_2_15() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("…/shared is not here")
    graphs = read_meta_graphs(GOLDEN / "tpu_v1" / "1", None)
    assert [(g.tags, g.tensorflow_version) for g in graphs] == [(("serve",), "2.15.1"), (("serve", "tpu"), "2.15.1")]
    for graph in graphs:
        (signature,) = graph.signatures
        assert signature.name == "serving_default"
        assert [(t.name, t.dtype) for t in signature.inputs] == [("examples", "string")]
        assert [t.name for t in signature.outputs] == ["embedding", "score"]


def test_a_folder_that_is_no_saved_model_says_what_it_is(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is a folder of versions: name one, such as .*/toy/1"):
        read_meta_graphs(artifact.parent, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match="it is not a SavedModel"):
        read_meta_graphs(tmp_path / "empty", None)
    with pytest.raises(ExportError, match="does not exist"):
        read_meta_graphs(tmp_path / "nowhere", None)
    (artifact / "saved_model.pb").write_bytes(b"no proto")
    with pytest.raises(ArtifactError, match="is not a SavedModel"):
        read_meta_graphs(artifact, None)


def write_statistics(folder: Path) -> None:
    """Writes statistics of the toy model's table "tag": two examples, [3, 3] and [1, 9], the 9 outside the table."""
    seen = TableStatistics.empty(TableDescription("tag", 4, 3, "mean", ("tags",)), partitions=2)
    seen = seen.with_rows(np.array([3, 3, 1, 9]), np.array([0, 2, 4])).with_step(is_sampled=True)
    add_to_file(folder, seen.with_step(is_sampled=False))


def test_figures_are_those_of_the_rows_by_hand(tmp_path: Path) -> None:
    write_statistics(tmp_path)
    (found,) = find_statistics(tmp_path / "no artifact", tmp_path)
    (shown,) = json.loads(to_json(ArtifactReport("m/1", True, {}, (), statistics=(found,))))["statistics"]
    assert shown == {
        **{"table": "tag", "rows": 4, "features": ["tags"], "steps": 2, "sampled_steps": 1, "examples": 2},
        **{"ids": 3, "bad_ids": 1, "mean_ids": 2.0, "max_ids": 2, "ids_per_example": [[2, 2]]},
        **{"distinct_ids": 2, "distinct_is_exact": True, "hot_ids": [[3, 2], [1, 1]]},
        # Two partitions of 4 rows. div: rows 0 and 1 | 2 and 3; mod: rows 0 and 2 | 1 and 3.
        "partitions": {"div": [1, 2], "mod": [0, 3]},
    }


def test_an_artifact_may_carry_its_own(tmp_path: Path) -> None:
    assert find_statistics(tmp_path, None) == ()
    write_statistics(tmp_path / STATISTICS_FOLDER)
    assert [found.table.name for found in find_statistics(tmp_path, None)] == ["tag"]


def test_a_folder_without_any_is_an_error_and_so_is_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not a folder"):
        find_statistics(tmp_path, tmp_path / "nowhere")
    with pytest.raises(ExportError, match="holds no lookup statistics"):
        find_statistics(tmp_path, tmp_path)
    write_statistics(tmp_path)
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(ExportError, match="can not read statistics"):
        find_statistics(tmp_path, tmp_path)


def overwrite(artifact: Path, table: str, rows: dict[int, float]) -> None:
    """Sets each of these rows of a table to one number, in the shard itself."""

    def set_rows(manifest: dict[str, Any]) -> None:
        entry = manifest["tables"][table]
        dim = entry["embedding_dim"]
        data = bytearray((artifact / SHARD).read_bytes())
        for row, value in rows.items():
            at = entry["offset"] + 4 * dim * row
            data[at : at + 4 * dim] = np.full(dim, value, np.float32).tobytes()
        (artifact / SHARD).write_bytes(data)

    rewrite_manifest(artifact, set_rows)


def foreign(artifact: Path, tables: dict[str, np.ndarray]) -> None:
    """Makes the artifact one of another program, with these variables."""
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    write_bundle(artifact / "variables" / "variables", tables)


def test_a_whole_artifact_has_one_dead_row_in_five_which_is_said(artifact: Path) -> None:
    # Row 0 of table "user" is [0, 0], a dead row: it adds nothing to a lookup.
    assert build_report(artifact).findings == (
        "table 'user': 1 of 5 rows are all zeros and add nothing to a lookup: row 0",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: overwrite(a, "tag", {1: np.nan, 3: np.nan}), "table 'tag': 6 NaN in 2 of 4 rows: rows 1, 3"),
        (lambda a: overwrite(a, "user", {2: np.inf}), "table 'user': 2 Inf in 1 of 5 rows: row 2"),
        (
            lambda a: overwrite(a, "user", {3: 7, 4: 7}),
            "1 of 5 rows equal an earlier row bit for bit, as rows that were",
        ),
        (lambda a: (a / "assets" / "tag.txt").unlink(), "file assets/tag.txt is missing"),
        (lambda a: (a / "more").write_text(""), "file more is not in the manifest"),
        (lambda a: (a / "assets" / "tag.txt").write_text("x"), "assets/tag.txt has 1 bytes, the manifest says 15"),
        (
            lambda a: rewrite_manifest(a, lambda m: m["signatures"].update(gone=m["signatures"]["lookup"])),
            "signature 'gone' is in the manifest, but not in saved_model.pb",
        ),
        (lambda a: (a / SHARD).write_bytes(b"short"), "was not read: it ends at byte"),
        (lambda a: foreign(a, {"emb": np.full((4, 2), np.nan, np.float32)}), "table 'emb': 8 NaN in 4 of 4 rows: rows"),
    ],
)
def test_what_is_wrong_is_a_finding(artifact: Path, change: Callable[[Path], Any], message: str) -> None:
    change(artifact)
    assert [found for found in build_report(artifact).findings if message in found]


def test_an_uneven_load_is_a_finding(artifact: Path) -> None:
    seen = TableStatistics.empty(TableDescription("tag", 4, 3, "mean", ("tags",)), partitions=4)
    add_to_file(artifact / STATISTICS_FOLDER, seen.with_rows(np.array([1, 1, 1]), np.array([0, 3])))
    found = [found for found in build_report(artifact).findings if "partition strategy" in found]
    assert found == [
        f"table 'tag': with partition strategy {strategy!r} the fullest of 4 partitions gets 4.0 times the mean of them"
        for strategy in ("div", "mod")
    ]


def test_ids_in_words() -> None:
    assert first_ids(Rows(1, (4,))) == "row 4"
    assert first_ids(Rows(12, tuple(range(10)))) == "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
