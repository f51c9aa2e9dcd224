"""The commands that show a version and its tables."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_export.__main__ import main
from model_export.report.table_files import SlicedRows, declared_tables, map_table, matrix_variables
from model_export.statistics.table_health import table_health
from service.errors import ArtifactError
from tests.toy_model import SHARD, manifest_of, toy_tables, write_bundle
from tests.unit.model_export.report.test_renderings import write_statistics


def test_json_is_alone_on_stdout_and_html_in_its_file(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = artifact.parent / "report.html"
    assert main(["inspect", str(artifact), "--json", "--html", str(page)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["tables"][0]["projection"]["ids"] == [0, 1, 2, 3, 4]
    assert str(page) in captured.err and page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_rows_are_written_for_the_projector(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = artifact.parent / "projector"
    assert main(["inspect", str(artifact), "--projector", str(folder), "--projector_rows", "3"]) == 0
    assert "projector: 3 rows of table 'user'" in capsys.readouterr().out
    assert main(["inspect", str(artifact), "--json", "--projector", str(folder)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) and f"tensorboard --logdir {folder}" in captured.err


@pytest.mark.parametrize("number", ["0", "100001", "-1", "x"])
def test_a_bad_number_of_projector_rows_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", "x", "--projector_rows", number])
    assert "is not a number from 1 to 100000" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "missing"), [([], "projection"), (["--fast"], "health")])
def test_without_html_or_labels_nothing_is_projected_and_fast_reads_no_table(
    artifact: Path, flags: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(artifact), "--json", *flags]) == 0
    assert [table[missing] for table in json.loads(capsys.readouterr().out)["tables"]] == [None, None]


def test_labels_statistics_and_run_come_from_where_the_flags_say(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_statistics(tmp_path / "statistics")
    (tmp_path / "run.json").write_text('{"history": [{"epoch": 1, "loss": 2.0}]}')
    (tmp_path / "kinds.csv").write_text("key,name,kind\nred,Red,warm\nblue,Blue,cold\n")
    flags = ["--statistics", str(tmp_path / "statistics"), "--run", str(tmp_path)]
    labels = ["--labels", f"tag={tmp_path / 'kinds.csv'}#kind"]
    assert main(["inspect", str(artifact), "--json", *flags, *labels]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["statistics"][0]["table"] == "tag"
    assert document["curves"][0]["name"] == "loss"
    picture = document["tables"][1]["projection"]
    assert (picture["ids"], picture["labels"], picture["label_title"]) == ([1, 3], ["warm", "cold"], "kind")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--labels", "nowhere=x.csv"], "there is no table 'nowhere', only 'user', 'tag'"),
        (["--labels", "tag=x.csv", "--fast"], "leave out --fast"),
        (["--labels", "tag=y.csv"], "cannot read the labels of table 'tag' from y.csv"),
        (["--statistics", "nowhere"], "--statistics: nowhere is not a folder"),
        (["--run", "nowhere"], "cannot read the history of nowhere/run.json"),
        (["--html", "nowhere/report.html"], "cannot write nowhere/report.html"),
        (["--projector", "/dev/null/projector"], "cannot write /dev/null"),
    ],
)
def test_an_error_is_one_line(
    artifact: Path,
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("red,warm\n")
    assert main(["inspect", str(artifact), *flags]) == 1
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_label_given_twice_and_a_flag_that_is_no_label_file_are_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (artifact.parent / "l.csv").write_text("red,warm\n")
    flag = ["--labels", f"tag={artifact.parent / 'l.csv'}"]
    assert main(["inspect", str(artifact), *flag, *flag]) == 1
    assert "'tag' is given twice" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", "x", "--labels", "films.csv"])
    assert "TABLE=FILE" in capsys.readouterr().err


def test_inspecting_imports_no_tensorflow(artifact: Path) -> None:
    code = (
        "import sys; from model_export.__main__ import main;"
        f"main(['inspect', {str(artifact)!r}, '--html', {str(artifact.parent / 'r.html')!r}]);"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.tf
def test_every_disagreement_is_listed_and_the_status_is_1(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "assets" / "tag.txt").write_text("red\nred\n")
    (artifact / "more").write_text("")
    assert main(["verify", str(artifact)]) == 1
    captured = capsys.readouterr()
    listed = [line for line in captured.out.splitlines() if line.startswith("  ! ")]
    assert [line for line in listed if "assets/tag.txt has 8 bytes" in line]
    assert [line for line in listed if "more has 0 bytes" in line] and "signature agree" not in captured.out
    assert captured.err.endswith(f"is not what it says: {len(listed)} disagreements, listed on stdout\n")


@pytest.mark.tf
def test_a_failed_verification_is_a_whole_report_too(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "more").write_text("")
    page = artifact.parent / "r.html"
    assert main(["verify", str(artifact), "--json", "--html", str(page)]) == 1
    captured = capsys.readouterr()
    (line,) = json.loads(captured.out)["disagreements"]
    assert "more has 0 bytes" in line and "more has 0 bytes" in page.read_text(encoding="utf-8")
    assert "1 disagreement," in captured.err and "starting TensorFlow" in captured.err


@pytest.mark.tf
def test_a_folder_without_a_manifest_can_not_be_verified(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "assets.extra" / "lookup_manifest.json").unlink()
    assert main(["verify", str(artifact)]) == 1
    assert "no lookup manifest" in capsys.readouterr().err


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports a model with both lookups; tests must not change the folder."""
    from model_export.export_model import export
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    base = tmp_path_factory.mktemp("exported")
    return export(TableSource(TWO_FEATURES), base, lookup_device=["cpu", "tpu_tensor_core"])


@pytest.mark.tf
def test_a_good_artifact_is_verified_and_the_parity_is_the_fresh_one(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = exported.parent / "r.html"
    assert main(["verify", str(exported), "--json", "--html", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["disagreements"] == []
    assert document["parity"]["signatures"]["lookup"]["reference"] == "oracle"
    assert document["parity"]["signatures"]["lookup"]["cases"] > 0
    assert [(c["name"], c["points"]) for c in document["curves"]] == [("loss", [[1.0, 0.5]])]
    # The model's predictions reduce the whole table, so no gathered rows can be compared with the lookup's.
    agreed = "every answer compared agree; compared in part only: lookup"
    assert f"Verified: files, index, manifest and {agreed}." in page.read_text(encoding="utf-8")
    assert main(["verify", str(exported)]) == 0
    out = capsys.readouterr().out
    assert "against the oracle" in out and out.endswith(f"{agreed}\n")


def test_declared_tables_are_read_as_they_lie(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    tables = declared_tables(manifest)
    assert [(table.name, table.features) for table in tables] == [
        ("user", ("user",)),
        ("tag", ("tags", "tags_sqrtn", "tags_sum")),
    ]
    for table in tables:
        np.testing.assert_array_equal(map_table(artifact, table)[:], toy_tables()[table.name])


def test_variables_of_a_foreign_model_are_its_float_matrices(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    wide = np.arange(12, dtype=np.float64).reshape(4, 3)
    tensors: dict[str, np.ndarray] = {
        "emb/.ATTRIBUTES/VARIABLE_VALUE": np.ones((2, 3), np.float32),
        "wide": wide,
        "bias": np.ones(3, np.float32),
        "ids": np.ones((2, 2), np.int64),
    }
    write_bundle(tmp_path / "variables" / "variables", tensors)
    found = matrix_variables(tmp_path)
    assert [(t.name, t.vocabulary_size, t.embedding_dim, t.dtype) for t in found] == [
        ("wide", 4, 3, "float64"),
        ("emb", 2, 3, "float32"),
    ]
    np.testing.assert_array_equal(map_table(tmp_path, found[0])[:], wide)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8"}, "float8 are not read"),
        ({"nbytes": 12}, "12 bytes do not hold 5 x 2 of float32"),
        ({"offset": 10_000}, "ends at byte 10,040"),
        ({"file": "variables/nowhere"}, "cannot read variables/nowhere"),
    ],
)
def test_what_can_not_be_read_says_why(artifact: Path, change: dict[str, object], message: str) -> None:
    manifest = manifest_of(artifact)
    with pytest.raises(ArtifactError, match=message):
        map_table(artifact, dataclasses.replace(declared_tables(manifest)[0], **change))  # type: ignore[arg-type]


def test_a_shard_that_was_cut_is_refused_before_it_is_mapped(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    (artifact / SHARD).write_bytes((artifact / SHARD).read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="it ends at byte"):
        map_table(artifact, max(declared_tables(manifest), key=lambda table: table.offset))


def test_slices_read_like_the_whole() -> None:
    whole = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    sliced = SlicedRows([whole[:4], whole[4:5], whole[5:]])
    assert sliced.shape == whole.shape and sliced.dtype == whole.dtype
    np.testing.assert_array_equal(sliced[2:9], whole[2:9])
    ids = np.array([9, 0, 4, 4, 3])
    np.testing.assert_array_equal(sliced[ids], whole[ids])
    assert table_health(sliced) == table_health(whole)


@pytest.mark.tf
def test_a_variable_that_tensorflow_saved_in_slices(tmp_path: Path, tf: object) -> None:
    from loadtest.foreign.frameworks import tf as tensorflow

    v1 = tensorflow.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("emb", [10, 2], partitioner=v1.fixed_size_partitioner(3))
        session.run(v1.global_variables_initializer())
        whole = session.run(tensorflow.convert_to_tensor(variable))
        v1.train.Saver().save(session, str(tmp_path / "variables" / "variables"), write_meta_graph=False)
    (found,) = matrix_variables(tmp_path)
    assert (found.name, found.vocabulary_size, found.embedding_dim, found.nbytes) == ("emb", 10, 2, 80)
    assert found.slices == 3
    np.testing.assert_array_equal(map_table(tmp_path, found)[:], whole)
