"""The exporter's options: its configuration file, names of rows, and command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from model_export.__main__ import main
from model_export.cli import build_parser
from model_export.errors import ExportError
from model_export.export_config import CONFIG_EXAMPLE, ExportConfig, read_config, run_config
from model_export.folder_checks import StoreUri
from model_export.row_names import LabelFile, read_labels, row_labels, table_vocabularies, vocabulary_names
from service.artifact.manifest import Manifest, VocabularyEntry
from service.errors import ArtifactError
from tests.toy_model import manifest_of, write_toy_model
from tests.unit.model_export.late import tf

MODEL = '''
"""A training script, as a user has one."""

from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource


def trained():
    """Returns the model."""
    return TableSource(TWO_FEATURES)


number = 3
'''


def written(folder: Path, text: str, name: str = "export.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_example_of_the_help_holds(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, CONFIG_EXAMPLE)) == ExportConfig(
        "factory",
        "my_package.training:trained_model",
        Path("models/mine"),
        {
            "version": 3,
            "lookup_device": ["cpu", "tpu_tensor_core"],
            "signatures": ["serving_default", "lookup"],
            "batch_sizes": [1, 8, 64, 512],
            "export_to_tpu": False,
            "allow_nonfinite": False,
            "warmup": True,
            "table_dtype": {"item": "int8"},
            "labels": {"item": "items.csv#title"},
        },
        {"max_ids_per_row": 16},
    )


def test_json_is_read_too_and_flags_go_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps({"run": "runs/a", "out": "models/a", "version": 3}), "export.json")
    config = read_config(path, {"version": 4, "out": "models/b", "warmup": None})
    assert (config.kind, config.model, config.out) == ("run", "runs/a", Path("models/b"))
    assert config.arguments == {"version": 4}


def test_a_configuration_may_write_into_an_object_store(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, 'run = "runs/a"\nout = "s3://bucket/models/a/"'))
    assert config.out == StoreUri("s3://bucket/models/a")
    assert isinstance(config.out, StoreUri)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run = 'a'\nout = 'b'\ncolour = 1\nsize = 2\n", r"unknown keys \['colour', 'size'\]; there are factory, run"),
        ("run = 'a'\nfactory = 'b:c'\nout = 'b'\n", r"names \['factory', 'run'\]; exactly one"),
        ("out = 'b'\n", "names no model"),
        ("run = 'a'\n", "out is missing"),
        ("run = 'a'\nout = 'b'\nversion = true\n", "version is True, expected int"),
        ("run = 'a'\nout = 'b'\nversion = '3'\n", "version is '3', expected int"),
        ("run = 'a'\nout = 'b'\nsignatures = 'lookup'\n", "signatures is 'lookup', expected list"),
        ("run = 'a'\nout = 'b'\nwarmup = 1\n", "warmup is 1, expected bool"),
        ("run = 'a'\nout = 'b'\nspec = 'c'\n", "spec belongs to adopt"),
        ("adopt = 'a'\nspec = 'c'\nout = 'b'\nwarmup = false\n", r"\['warmup'\] do not go with adopt"),
        ("run = \n", "cannot read"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read_config(written(tmp_path, text))


def test_a_file_that_is_not_there_or_holds_no_keys(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot read .*none.toml"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(ExportError, match="holds no table of keys"):
        read_config(written(tmp_path, "[1]", "a.json"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_colon", "expected package.module:function"),
        ("no_such_module_here:f", "No module named 'no_such_module_here'"),
        ("json:no_such_function", "no attribute 'no_such_function'"),
    ],
)
def test_a_factory_that_is_not_there(tmp_path: Path, factory: str, message: str) -> None:
    config = read_config(written(tmp_path, f"factory = '{factory}'\nout = 'x'\n"))
    with pytest.raises(ExportError, match=message):
        run_config(config)


def test_the_help_shows_both_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command, line in (("export", "lookup_device = ["), ("adopt", "[signatures.serving_default]")):
        with pytest.raises(SystemExit):
            build_parser().parse_args([command, "--help"])
        assert line in capsys.readouterr().out


@pytest.mark.tf
def test_the_command_exports_what_a_factory_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, MODEL, "my_training.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path)  # the command adds the current folder to sys.path
    text = "factory = 'my_training:trained'\nout = 'models'\nwarmup = false\nbatch_sizes = [2]\n"
    path = written(tmp_path, text)
    flags = ["--lookup_device", "both", "--signatures", "lookup,lookup_tpu_tensor_core", "--version", "6"]
    assert main(["export", "--config", str(path), *flags]) == 0
    assert "exported and verified: models/6" in capsys.readouterr().out
    manifest = manifest_of(tmp_path / "models" / "6")
    assert list(manifest.signatures) == ["lookup", "lookup_tpu_tensor_core"]
    assert manifest.signatures["lookup_tpu_tensor_core"].batch_sizes == (2,)
    assert "assets.extra/tf_serving_warmup_requests" not in manifest.files


@pytest.mark.tf
def test_an_option_that_the_model_does_not_take_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, MODEL, "my_training.py")
    monkeypatch.syspath_prepend(tmp_path)
    path = written(tmp_path, f"factory = 'my_training:trained'\nout = '{tmp_path}/m'\n[options]\ncolour = 1\n")
    assert main(["export", "--config", str(path)]) == 1
    assert "takes no options, got ['colour']" in capsys.readouterr().err
    path = written(tmp_path, f"factory = 'my_training:number'\nout = '{tmp_path}/m'\n")
    assert main(["export", "--config", str(path)]) == 1
    assert "model-export: factory 'my_training:number'" in capsys.readouterr().err


@pytest.mark.tf
def test_a_configuration_adopts(tmp_path: Path) -> None:
    import numpy as np

    module: Any = tf.Module()
    module.film = tf.Variable(np.ones((3, 2), np.float32))
    signature = tf.function(lambda: {"one": tf.constant(1)}, input_signature=[])
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": signature})
    written(tmp_path, '[tables.film]\n[features.film]\ntable = "film"\n', "spec.toml")
    text = f"adopt = '{tmp_path}/saved'\nspec = '{tmp_path}/spec.toml'\nout = '{tmp_path}/out'\nversion = 2\n"
    artifact = run_config(read_config(written(tmp_path, text)))
    manifest = Manifest.read(artifact)
    assert artifact == tmp_path / "out" / "2"
    assert {n: e.kind for n, e in manifest.signatures.items()} == {"lookup": "lookup", "serving_default": "predict"}


def label_file(folder: Path, text: str, *, name: str = "labels.csv", column: str | None = None) -> LabelFile:
    """Writes a file of labels for the table "t"; returns its description."""
    (folder / name).write_text(text, encoding="utf-8")
    return LabelFile("t", folder / name, column)


def vocabulary(folder: Path, text: str, **fields: object) -> dict[Path, VocabularyEntry]:
    (folder / "v.txt").write_bytes(text.encode())
    entry = VocabularyEntry(file="v.txt", size=text.count("\n"), **fields)  # type: ignore[arg-type]
    return {folder / "v.txt": entry}


def test_row_numbers_without_a_vocabulary(tmp_path: Path) -> None:
    found = read_labels(label_file(tmp_path, "0,red\n2,blue\n9,green\n"), 5, {})
    assert (found.labels, found.names, found.title, found.unmatched) == ({0: "red", 2: "blue"}, {}, "label", 1)


def test_a_header_names_the_labels_and_another_column_the_rows(tmp_path: Path) -> None:
    text = 'film_id,title,genres\n1,"Toy Story, part 1",Animation|Comedy\n2,GoldenEye,\n'
    found = read_labels(label_file(tmp_path, text, column="genres"), 5, {})
    assert found.labels == {1: "Animation"}
    assert found.names == {1: "Toy Story, part 1", 2: "GoldenEye"}
    assert found.title == "genres"
    assert read_labels(label_file(tmp_path, text), 5, {}).labels == {1: "Toy Story, part 1", 2: "GoldenEye"}


def test_tabs_in_a_tsv_and_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_labels(label_file(tmp_path, "\ufeff1\ta,b\tname\n", name="x.tsv"), 5, {}).labels == {1: "a,b"}


def test_keys_of_a_vocabulary_come_before_row_numbers(tmp_path: Path) -> None:
    vocabularies = vocabulary(tmp_path, "red\n3\n", first_id=1)
    found = read_labels(label_file(tmp_path, "red,warm\n3,number\n4,row\n"), 5, vocabularies)
    assert found.labels == {1: "warm", 2: "number", 4: "row"}


def test_beside_integer_keys_a_number_is_a_key_only(tmp_path: Path) -> None:
    vocabularies = vocabulary(tmp_path, "100\n7\n", key_dtype="int64")
    found = read_labels(label_file(tmp_path, "7,a\n100,b\n1,c\n"), 5, vocabularies)
    assert (found.labels, found.unmatched) == ({1: "a", 0: "b"}, 1)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", None, "a line of labels is a key"),
        ("1\n", None, "a line of labels is a key"),
        ("9,a\n", None, "a row number below 5"),
        ("id,kind\n1,a\n", "genre", r"no column 'genre' of labels: its header has \['id', 'kind'\]"),
        ("1,a\n", "genre", "its first line is no header"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, column: str | None, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read_labels(label_file(tmp_path, text, column=column), 5, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"labels of table 't' from .*nowhere\.csv"):
        read_labels(LabelFile("t", tmp_path / "nowhere.csv"), 5, {})


@pytest.mark.parametrize("text", ["films.csv", "=films.csv", "film="])
def test_a_flag_without_table_or_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TABLE=FILE"):
        LabelFile.parse(text)


def test_labels_of_rows_for_an_artifact(tmp_path: Path) -> None:
    text = "film_id,title,genres\n1,Toy Story,Animation|Comedy\n3,,x\n9,beyond,x\n"
    assert row_labels(label_file(tmp_path, text, column="genres"), 4, {}) == ["", "Animation|Comedy", "", "x"]
    assert row_labels(label_file(tmp_path, text), 4, {}) == ["", "Toy Story", "", ""]
    vocabularies = vocabulary(tmp_path, "red\n3\n", first_id=1)
    assert row_labels(label_file(tmp_path, "3,three\n"), 4, vocabularies) == ["", "", "three", ""]
    lines = label_file(tmp_path, "\nToy Story, 1\nb\n", name="titles.txt")
    assert row_labels(lines, 3, {}) == ["", "Toy Story, 1", "b"]
    with pytest.raises(ExportError, match="has 3 labels, table 't' has 4 rows: line 1 is the label of row 0"):
        row_labels(lines, 4, {})
    with pytest.raises(ExportError, match="cannot read the labels of table 't'"):
        row_labels(LabelFile("t", tmp_path / "none.txt"), 4, {})


def test_names_of_rows_from_the_toy_vocabulary(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "toy" / "1")
    manifest = manifest_of(artifact)
    assert table_vocabularies(artifact, manifest, "user") == {}
    names = vocabulary_names(table_vocabularies(artifact, manifest, "tag"), [0, 1, 3])
    assert names == {0: "(any other key)", 1: "red", 3: "blue"}


def test_names_of_buckets_and_of_strange_bytes(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_bytes(b"a b\r\n\xff\n")
    entry = VocabularyEntry(file="v.txt", size=2, first_id=1, num_oov_buckets=2)
    names = vocabulary_names({tmp_path / "v.txt": entry}, range(5))
    assert names == {1: "a b", 2: "\\xff", 3: "(other keys, bucket 0)", 4: "(other keys, bucket 1)"}


def test_a_vocabulary_that_is_gone_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot read vocabulary"):
        vocabulary_names({tmp_path / "v.txt": VocabularyEntry(file="v.txt", size=1)}, [0])


def test_help_names_every_command_and_a_first_line_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert "model-export demo --dataset synthetic" in text
    assert all(command in text for command in ("fetch", "train", "export", "verify", "inspect"))
    listed = re.findall(r"^    (\w+) ", text, re.MULTILINE)
    assert listed[:4] == ["export", "import", "adopt", "inspect"]
    assert re.findall(r"^  model-export (\w+)", text, re.MULTILINE)[:4] == ["export", "import", "adopt", "inspect"]


def test_a_user_error_is_one_message_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert "it is not a SavedModel" in capsys.readouterr().err
    (tmp_path / "7").mkdir()
    assert main(["export", "--out", str(tmp_path), "--version", "7"]) == 1
    assert "never overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["8,1", "a", "0,1", "1,1", ""])
def test_bad_batch_sizes_are_refused(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["export", "--batch_sizes", sizes])
    assert repr(sizes) in capsys.readouterr().err


def test_an_unknown_flag_is_told_by_its_command_with_the_flag_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["inspect", "models/toy/1", "--lables=a.csv"])
    told = "unrecognized arguments: --lables=a.csv; did you mean --labels?; model-export inspect --help lists"
    assert capsys.readouterr().err == f"model-export inspect: {told} the arguments\n"


def test_an_installation_of_the_server_alone_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("model_export.cli", "model_export.report.commands"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert main(["inspect", "models/toy/1"]) == 1
    assert capsys.readouterr().err.startswith("model-export: this installation lacks the extra [export]: ")
