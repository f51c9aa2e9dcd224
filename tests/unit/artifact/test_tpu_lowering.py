"""Lowering removes the nodes of a TPU's rewrite and no others; test_tpu_graph.py tests the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from service.artifact.protos import message_class
from service.artifact.tpu_lowering import is_tpu_only, lower
from service.errors import ArtifactError

CALL = """
    meta_info_def { tags: "serve" tags: "tpu" }
    graph_def {
      node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
      node { name: "ordinal" op: "TPUOrdinalSelector" }
      node {
        name: "call" op: "TPUPartitionedCall" input: "x" input: "ordinal" input: "^gate" device: "/device:CPU:0"
        attr { key: "Tin" value { list { type: DT_FLOAT } } }
        attr { key: "Tout" value { list { type: DT_FLOAT type: DT_FLOAT } } }
        attr { key: "f" value { func { name: "body" } } }
        attr { key: "autotuner_thresh" value { i: 1 } }
        attr { key: "_output_shapes" value { list { shape { unknown_rank: true } } } }
      }
      node { name: "gate" op: "NoOp" }
      node { name: "y" op: "Identity" input: "call:1" attr { key: "T" value { type: DT_FLOAT } } }
      library {
        function {
          signature { name: "body" input_arg { name: "x" type: DT_FLOAT } output_arg { name: "out" type: DT_FLOAT } }
          attr { key: "_tpu_mark" value { b: true } }
          attr { key: "_XlaMustCompile" value { b: true } }
          arg_attr { key: 0 value { attr { key: "_xla_argument" value { b: true } } } }
          node_def {
            name: "meta" op: "TPUReplicateMetadata" input: "^pivot" attr { key: "num_replicas" value { i: 1 } }
            attr { key: "_tpu_replicate" value { s: "cluster" } }
          }
          node_def { name: "pivot" op: "NoOp" attr { key: "_pivot_for_cluster" value { s: "cluster" } } }
          node_def { name: "status" op: "TPUCompilationResult" input: "^meta" }
          node_def { name: "core" op: "TPUOrdinalSelector" input: "^meta" }
          node_def {
            name: "in" op: "TPUReplicatedInput" input: "x"
            attr { key: "N" value { i: 1 } } attr { key: "T" value { type: DT_FLOAT } }
            attr { key: "index" value { i: -1 } } attr { key: "is_packed" value { b: false } }
          }
          node_def {
            name: "twice" op: "AddV2" input: "in:output:0" input: "in:output:0" input: "^meta"
            device: "/device:TPU_REPLICATED_CORE:0"
            attr { key: "T" value { type: DT_FLOAT } }
            attr { key: "_tpu_replicate" value { s: "cluster" } }
            attr { key: "_xla_outside_compilation" value { s: "0" } }
            attr { key: "_class" value { list { s: "loc:@in" } } }
          }
          node_def {
            name: "nested" op: "TPUPartitionedCall" input: "twice:z:0" input: "core:device_ordinals:0" input: "^meta"
            attr { key: "Tin" value { list { type: DT_FLOAT } } }
            attr { key: "Tout" value { list { type: DT_FLOAT } } }
            attr { key: "f" value { func { name: "inner" } } }
          }
          node_def {
            name: "outs" op: "TPUReplicatedOutput" input: "nested:output:0"
            attr { key: "num_replicas" value { i: 1 } } attr { key: "T" value { type: DT_FLOAT } }
          }
          node_def {
            name: "use" op: "Pack" input: "outs:outputs:0" input: "core:device_ordinals:0" input: "^outs"
          }
          node_def { name: "shown" op: "Identity" input: "status:output:0" }
          ret { key: "out" value: "outs:outputs:0" }
          control_ret { key: "done" value: "outs" }
        }
        function {
          signature { name: "inner" input_arg { name: "v" type: DT_FLOAT } output_arg { name: "w" type: DT_FLOAT } }
          node_def {
            name: "split" op: "TPUPartitionedOutput" input: "v"
            attr { key: "num_splits" value { i: 1 } } attr { key: "T" value { type: DT_FLOAT } }
          }
          ret { key: "w" value: "split:output:0" }
        }
      }
    }
"""


def parse(text: str) -> Any:
    """Returns a MetaGraphDef."""
    return text_format.Parse(text, message_class("tensorflow.MetaGraphDef")())


@pytest.fixture
def lowered() -> Any:
    """CALL, lowered."""
    meta_graph = parse(CALL)
    lower(meta_graph)
    return meta_graph


def nodes(meta_graph: Any, function: str = "") -> dict[str, Any]:
    """Returns the nodes of the graph or of one of its functions, by name."""
    graph = meta_graph.graph_def
    found = {f.signature.name: f.node_def for f in graph.library.function}[function] if function else graph.node
    return {node.name: node for node in found}


def test_the_call_is_an_ordinary_one_without_its_ordinal(lowered: Any) -> None:
    call = nodes(lowered)["call"]
    assert (call.op, list(call.input)) == ("StatefulPartitionedCall", ["x", "^gate"])
    assert set(call.attr) == {"Tin", "Tout", "f", "_output_shapes"}
    assert call.attr["f"].func.name == "body"
    assert call.device == "/device:CPU:0"
    assert list(nodes(lowered)["y"].input) == ["call:1"]


def test_the_ordinal_is_a_number_for_whoever_else_reads_it(lowered: Any) -> None:
    for node, control in ((nodes(lowered)["ordinal"], []), (nodes(lowered, "body")["core"], ["^meta"])):
        assert (node.op, list(node.input), node.attr["dtype"].type) == ("Const", control, 3)
        assert list(node.attr["value"].tensor.int_val) == [0]


def test_replica_ops_hand_their_tensor_on_under_their_old_names(lowered: Any) -> None:
    body = nodes(lowered, "body")
    assert {name: body[name].op for name in ("in", "outs", "meta", "status", "pivot")} == {
        "in": "Identity",
        "outs": "Identity",
        "meta": "NoOp",
        "status": "Const",
        "pivot": "NoOp",
    }
    assert [set(body[name].attr) for name in ("in", "outs", "meta")] == [{"T"}, {"T"}, set()]
    assert list(body["meta"].input) == ["^pivot"]
    assert list(body["status"].input) == ["^meta"]
    assert list(body["status"].attr["value"].tensor.string_val) == [b""]


def test_references_in_functions_follow_the_new_output_names(lowered: Any) -> None:
    body = nodes(lowered, "body")
    assert list(body["twice"].input) == ["in:output:0", "in:output:0", "^meta"]
    assert list(body["nested"].input) == ["twice:z:0", "^meta"]
    assert list(body["use"].input) == ["outs:output:0", "core:output:0", "^outs"]
    assert list(body["shown"].input) == ["status:output:0"]
    functions = {f.signature.name: f for f in lowered.graph_def.library.function}
    assert dict(functions["body"].ret) == {"out": "outs:output:0"}
    assert dict(functions["body"].control_ret) == {"done": "outs"}
    assert dict(functions["inner"].ret) == {"w": "split:output:0"}


def test_marks_and_devices_of_a_tpu_go_and_others_stay(lowered: Any) -> None:
    twice = nodes(lowered, "body")["twice"]
    assert (set(twice.attr), twice.device) == ({"T", "_class"}, "")
    (body,) = (f for f in lowered.graph_def.library.function if f.signature.name == "body")
    assert set(body.attr) == {"_XlaMustCompile"}
    assert dict(body.arg_attr[0].attr) == {}


def test_nothing_of_a_tpu_is_left_but_the_serve_tag(lowered: Any) -> None:
    assert list(lowered.meta_info_def.tags) == ["serve"]
    assert "TPU" not in text_format.MessageToString(lowered)


def test_a_graph_for_cpus_only_loses_its_tag() -> None:
    # Version 2 of TPUEstimator's export API writes such a {serve,tpu} graph on a machine without a TPU.
    text = 'meta_info_def { tags: "tpu" tags: "serve" } graph_def { node { name: "a" op: "NoOp" device: "/cpu:0" } }'
    meta_graph = parse(text)
    lower(meta_graph)
    assert meta_graph == parse(text.replace('tags: "tpu"', ""))


@pytest.mark.parametrize(
    "op", ["TPUEmbeddingActivations", "TPUReplicate", "InfeedDequeue", "CrossReplicaSum", "_XlaSendFromHost"]
)
@pytest.mark.parametrize("where", ["node", "library { function { node_def"])
def test_an_op_that_only_a_tpu_has_is_refused_by_name(op: str, where: str) -> None:
    closing = " } }" if where.startswith("library") else ""
    meta_graph = parse(f'graph_def {{ {where} {{ name: "a" op: "{op}" }} {closing} }}')
    with pytest.raises(ArtifactError, match=f"can not run on a CPU: only a TPU has {op};"):
        lower(meta_graph)


@pytest.mark.parametrize(
    ("op", "count"),
    [
        ("TPUReplicatedInput", "N"),
        ("TPUReplicatedOutput", "num_replicas"),
        ("TPUReplicateMetadata", "num_replicas"),
        ("TPUPartitionedInput", "N"),
    ],
)
def test_more_than_one_core_is_refused(op: str, count: str) -> None:
    meta_graph = parse(f'graph_def {{ node {{ name: "n" op: "{op}" attr {{ key: "{count}" value {{ i: 2 }} }} }} }}')
    with pytest.raises(ArtifactError, match=f"node 'n': {op} joins 2 TPU cores"):
        lower(meta_graph)


def test_a_call_without_an_ordinal_is_refused() -> None:
    meta_graph = parse(
        'graph_def { node { name: "c" op: "TPUPartitionedCall" input: "x" input: "^y" '
        'attr { key: "Tin" value { list { type: DT_FLOAT } } } } }'
    )
    with pytest.raises(ArtifactError, match="node 'c': TPUPartitionedCall has no input for its device ordinal"):
        lower(meta_graph)


@pytest.mark.tf
def test_every_op_refused_has_no_cpu_kernel_in_tensorflow(tf: Any) -> None:
    from tensorflow.python.framework import kernels, op_def_registry

    assert op_def_registry.get("TPUReplicatedInput") is not None
    for_cpus = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel if kernel.device_type == "CPU"}
    assert len(for_cpus) > 1000
    assert sorted(op for op in for_cpus if is_tpu_only(op)) == []
