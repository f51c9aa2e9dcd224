"""Configurations of `model-export export --config`: the example holds, mistakes are named, flags go before the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from model_export.__main__ import main
from model_export.cli import build_parser
from model_export.errors import ExportError
from model_export.export_config import CONFIG_EXAMPLE, ExportConfig, read_config, run_config
from model_export.folder_checks import StoreUri
from service.artifact.manifest import Manifest

MODEL = '''
"""A training script, as a user has one."""

from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource


def trained():
    """Returns the model."""
    return TableSource(TWO_FEATURES)


number = 3
'''


def written(folder: Path, text: str, name: str = "export.toml") -> Path:
    """Writes a configuration."""
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
    manifest = Manifest.read(tmp_path / "models" / "6")
    assert manifest is not None
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

    from model_export.tensorflow_setup import tf

    module: Any = tf.Module()
    module.film = tf.Variable(np.ones((3, 2), np.float32))
    signature = tf.function(lambda: {"one": tf.constant(1)}, input_signature=[])
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": signature})
    written(tmp_path, '[tables.film]\n[features.film]\ntable = "film"\n', "spec.toml")
    text = f"adopt = '{tmp_path}/saved'\nspec = '{tmp_path}/spec.toml'\nout = '{tmp_path}/out'\nversion = 2\n"
    artifact = run_config(read_config(written(tmp_path, text)))
    manifest = Manifest.read(artifact)
    assert artifact == tmp_path / "out" / "2" and manifest is not None
    assert {n: e.kind for n, e in manifest.signatures.items()} == {"lookup": "lookup", "serving_default": "predict"}
