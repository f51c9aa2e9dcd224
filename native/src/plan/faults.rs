//! Every error of a data request, once: its canonical code and its text. A form returns a [`Fault`]; the edge writes it
//! as an HTTP answer or as a gRPC status.
//!
//! TensorFlow Serving's texts stand to the letter; what helps the client is appended.
//!
//! Source: `tensorflow_serving/servables/tensorflow/predict_util.cc`, `util/json_tensor.cc`, `core/manager.h`,
//! `model_servers/server_core.cc` (9d981c5); `tensorflow/cc/saved_model/util.cc` (2.21).

use std::fmt::Write;

use super::near_names::did_you_mean;

/// A canonical code of `google.rpc.Code`; the discriminants are gRPC's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Returns the code's name in `google.rpc.Code`, which the header X-Error-Code and the metrics have.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// The labels under which a refusal is counted: model, version and signature, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Name of the model; "" if the request names none, or it is not known yet.
    pub model: String,
    /// Version of the model; None before the request has found its servable.
    pub version: Option<i64>,
    /// Name of the signature; "" before the request has found it.
    pub signature: String,
}

/// The error of one data request, in the client's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: Code,
    pub text: String,
    /// The text for a request whose rows are `instances`, if it has another one; else "".
    pub text_of_instances: String,
    pub subject: Subject,
    /// Whether the server has too much work now, so that the client may send the request again.
    pub may_retry: bool,
    /// The reason that the log has and the client does not get; "" if the text says everything.
    pub cause: String,
}

/// Target of the log's events for refusals: the log of Python gives them to the logger of their wire.
pub const LOG_TARGET: &str = "_native::refusals";

/// A fault on the heap: a `Result` that may have one stays small.
pub type BoxedFault = Box<Fault>;

impl Fault {
    /// Returns a fault whose request has found neither its model nor its signature.
    #[must_use]
    #[cold]
    pub fn new(code: Code, text: String) -> BoxedFault {
        Box::new(Fault {
            code,
            text,
            text_of_instances: String::new(),
            subject: Subject::default(),
            may_retry: false,
            cause: String::new(),
        })
    }

    /// Sets the text for a request whose rows are `instances`.
    #[must_use]
    pub fn or_in_instances(mut self: Box<Self>, text: String) -> BoxedFault {
        self.text_of_instances = text;
        self
    }

    /// Sets the model for which the fault counts, if none is set yet.
    #[must_use]
    pub fn of_model(mut self: Box<Self>, model: &str) -> BoxedFault {
        if self.subject.model.is_empty() {
            model.clone_into(&mut self.subject.model);
        }
        self
    }

    /// Lets the client send the request again: the server has too much work now.
    #[must_use]
    pub fn for_later(mut self: Box<Self>) -> BoxedFault {
        self.may_retry = true;
        self
    }

    /// Sets the labels under which the fault is counted.
    #[must_use]
    pub fn at(mut self: Box<Self>, subject: Subject) -> BoxedFault {
        self.subject = subject;
        self
    }
}

/// Returns the error of a request that failed for a fault of the server: `cause` is logged, and the client does not get
/// it.
#[must_use]
#[cold]
pub fn internal(cause: impl Into<String>) -> BoxedFault {
    let text = "The server failed to run this request; the server's log has the cause.";
    Box::new(Fault { cause: cause.into(), ..*Fault::new(Code::Internal, text.to_owned()) })
}

/// Returns the error of a request whose graph failed, and not for its inputs: `cause` is logged, and the client does not
/// get it.
#[must_use]
#[cold]
pub fn graph_failed(cause: String) -> BoxedFault {
    let text = "TensorFlow failed to run this request; the server's log has the cause.";
    Box::new(Fault { cause, ..*Fault::new(Code::Internal, text.to_owned()) })
}

/// Returns the error of a request whose graph can not be opened: `cause` names folders of the server, so it is logged, and
/// the client does not get it.
#[must_use]
#[cold]
pub fn graph_not_loaded(cause: &str) -> BoxedFault {
    let text = "The graph of this signature can not be loaded; the server's log has the cause.";
    Box::new(Fault { cause: cause.to_owned(), ..*Fault::new(Code::Internal, text.to_owned()) })
}

/// Declares one function for each error: its canonical code, its name with its arguments, and its text.
macro_rules! faults {
    ($($code:ident $name:ident($($arg:ident: $type:ty),*) $text:literal;)*) => {$(
        #[must_use]
        #[cold]
        #[allow(clippy::must_use_candidate, reason = "the text says what the error is")]
        pub fn $name($($arg: $type),*) -> BoxedFault {
            Fault::new(Code::$code, format!($text))
        }
    )*};
}

// Models, versions, labels, tables, rights.
faults! {
    NotFound unknown_model(model: &str) "Servable not found for request: Latest({model})";
    NotFound unknown_version(model: &str, version: i64, hint: &str)
        "Servable not found for request: Specific({model}, {version}){hint}";
    Unimplemented version_not_run(model: &str, version: i64)
        "Version {version} of model \"{model}\" can not be run; the server's log and its status page say why.";
    InvalidArgument unknown_label(label: &str, hint: &str) "Unrecognized servable version label: {label}{hint}";
    Unavailable not_ready(model: &str, problem: &str) "Model \"{model}\" is not ready: {problem}";
    NotFound unknown_table(model: &str, table: &str, known: Names) "Model \"{model}\" has no table \"{table}\". Tables: {known}.";
    PermissionDenied no_right(caller: &str, model: &str)
        "Caller \"{caller}\" lacks the right \"predict\" on model \"{model}\".";
    Unavailable rows_unreadable(table: &str, why: &str) "Rows of table \"{table}\" can not be read now: {why}.";
    DeadlineExceeded late_for_rows(table: &str) "The deadline passed before rows of table \"{table}\" were read.";
    DeadlineExceeded late_for_run() "The deadline passed before the request was run.";
    ResourceExhausted no_memory(text: &str) "{text}; the server has no memory for so large a tensor: send fewer or smaller values.";
    ResourceExhausted answer_too_large(size: usize, rows: usize, limit: usize)
        "The answer would hold {size} bytes for {rows} rows, this server's limit is {limit} bytes; send fewer rows per request.";
}

// Forms of answers.
faults! {
    InvalidArgument tensor_encoding(name: &str, known: &Names)
        "The metadata \"x-tensor-encoding\" is \"{name}\"; expected one of {known}.";
}

// Signatures that no request can run.
faults! {
    Unimplemented signature_not_run(signature: &str, reason: &str, runnable: Names)
        "Signature \"{signature}\" can not be run: {reason}. Signatures that this server runs: {runnable}.";
    FailedPrecondition no_tensorflow(signature: &str, why: &str, runnable: Names)
        "Signature \"{signature}\" runs a TensorFlow graph{why} and this server runs without TensorFlow. Signatures it can answer: {runnable}. To run graphs, install the extra [tensorflow] or use the full image, and do not set --graph_signatures=off.";
    InvalidArgument init_signature(signature: &str)
        "\"{signature}\" prepares the graph when the model is loaded; no request can run it.";
    Unavailable only_lookups(model: &str, version: i64)
        "Model \"{model}\" is not ready: version {version} is LOADING, and only its lookups are answered";
    Unimplemented output_not_carried(signature: &str, output: &str)
        "Output \"{output}\" of signature \"{signature}\" is a sparse or composite tensor, which no answer can carry; name the other outputs in the request's output filter.";
}

// Batches. Source: `tensorflow_serving/batching/{batching_session.cc,batching_util.h}` (9d981c5),
// `tensorflow/core/kernels/batching_util/shared_batch_scheduler.h` (2.21).
faults! {
    InvalidArgument task_too_large(rows: usize, limit: usize)
        "Task size {rows} is larger than maximum input batch size {limit}";
    Unavailable batch_queue_full(waiting: usize, most: usize)
        "The batch scheduling queue to which this task was submitted is full; currently {waiting} batches enqueued and max_enqueued_batches is {most}";
    Unavailable batch_queue_too_full(rows: usize, capacity: usize, waiting: usize, most: usize, open: usize, full: usize)
        "The batch scheduling queue to which this task was submitted is full; task size is {rows} but scheduling capacity is only {capacity} (num_enqueued_batches={waiting}, max_enqueued_batches={most}, open_batch_size={open}, max_execution_batch_size={full})";
    Unavailable no_batch_thread(why: &str) "The server can not start a thread for batches: {why}.";
    DeadlineExceeded late_for_batch() "Run() timeout exceeded while waiting in batching queue";
    InvalidArgument batch_without_inputs() "Batching Run() must have at least one input tensor";
    InvalidArgument batch_of_scalar() "Batching Run() input tensors must have at least one dimension";
    InvalidArgument batch_rows_differ() "Batching Run() input tensors must have equal 0th-dimension size";
    FailedPrecondition batch_output_scalar() "Batched output tensor has 0 dimensions";
    FailedPrecondition batch_output_rows()
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors";
    FailedPrecondition batch_outputs_differ() "Batched output tensors of one request differ in their shapes";
}

// Callers and paths of requests.
faults! {
    Unauthenticated no_credentials() "Valid credentials are required: Authorization: Bearer <token>, or a certificate.";
    InvalidArgument malformed_path(method: &str, path: &str, hint: &str) "Malformed request: {method} {path}{hint}";
    InvalidArgument no_version_number(version: &str) "Failed to convert version: {version} to numeric.";
    InvalidArgument no_header_length(shown: &str) "Inference-Header-Content-Length: '{shown}' is not a length in bytes.";
    ResourceExhausted body_too_long(size: u64, limit: usize) "The body of {size} bytes is over the limit of {limit} bytes.";
    ResourceExhausted body_over_limit(limit: usize) "The body is over the limit of {limit} bytes.";
    ResourceExhausted message_too_long(size: usize, limit: usize) "SERVER: Received message larger than max ({size} vs. {limit})";
    DataLoss damaged(model: &str, version: i64) "The files of version {version} of model \"{model}\" were damaged while it was served.";
}

// Names of inputs and outputs.
faults! {
    InvalidArgument no_features(signature: &str, features: Names)
        "signature \"{signature}\" needs at least one feature of: {features}.";
    InvalidArgument number_of_inputs(sent: usize, known: usize, names: &str, known_names: &str, extra: &str, missing: &str)
        "input size does not match signature: {sent}!={known} len({{{names}}}) != len({{{known_names}}}). Sent extra: {{{extra}}}. Missing but required: {{{missing}}}.";
    InvalidArgument missing_input(name: &str, feed: &str, sent: &str, optional: &str)
        "Signature input alias: {name}(feed name: {feed}) not found in request and no default value provided. Inputs expected to be in the request {{{sent}}}, or default input alias set: {optional}";
    InvalidArgument invalid_names(used: &str, sent: &str)
        "Inputs contains invalid name. Used request inputs: {used}, request input: {sent}";
    InvalidArgument takes_lists(feature: &str, values: &str, splits: &str)
        "feature \"{feature}\" takes a list of ids per row, and got one flat tensor: send the tensors \"{values}\" and \"{splits}\", or in JSON and the Python client a list of lists.";
    InvalidArgument takes_no_lists(feature: &str, wanted: &str)
        "\"{feature}\" takes no lists of different lengths: send \"{feature}\" as {wanted}.";
    InvalidArgument half_of_ragged(feature: &str, values: &str, splits: &str)
        "feature \"{feature}\": send both \"{values}\" and \"{splits}\".";
    InvalidArgument unknown_output(name: &str, known: &str)
        "output tensor alias not found in signature: {name} Outputs expected to be in the set {{{known}}}.";
    InvalidArgument output_twice(name: &str) "duplicate output tensor alias: {name}";
    InvalidArgument lacking_feature(output: &str, signature: &str, missing: Names)
        "output \"{output}\" of signature \"{signature}\" joins several features. Missing but required: {{{missing}}}.";
    InvalidArgument joined_rows_differ(output: &str, counts: &str)
        "output \"{output}\" joins features that differ in their number of rows: {counts}.";
}

// Dtypes, shapes, ids and row splits.
faults! {
    InvalidArgument wrong_graph_dtype(position: usize, wanted: &str, sent: &str, input: &str)
        "Expects arg[{position}] to be {wanted} but {sent} is provided for input \"{input}\"";
    InvalidArgument wrong_dtype(input: &str, wanted: &str, sent: &str) "input \"{input}\": expected {wanted}, got {sent}.";
    InvalidArgument value_does_not_fit(input: &str, dtype: &str) "input \"{input}\": a value does not fit {dtype}.";
    InvalidArgument wrong_shape(faults: &str) "{faults}";
    InvalidArgument bad_id(input: &str, id: i64, position: usize, last: i64)
        "input \"{input}\": id {id} at position {position} is out of range, its table has ids 0 to {last}.";
    InvalidArgument dtype_not_supported(input: &str, dtype: &str) "input \"{input}\": dtype {dtype} is not supported.";
    InvalidArgument not_in_table(place: &str, id: i64, size: usize) "indices{place} = {id} is not in [0, {size})";
    InvalidArgument too_many_ids(input: &str, row: usize, count: i64, limit: usize)
        "input \"{input}\": row {row} has {count} ids, this signature takes at most {limit}.";
    InvalidArgument too_many_rows(input: &str, rows: usize, limit: usize)
        "input \"{input}\": {rows} rows, this signature takes at most {limit}.";
    InvalidArgument not_rank_1(feature: &str) "feature \"{feature}\": values and row_splits must have rank 1.";
    InvalidArgument splits_start(input: &str, got: &str) "input \"{input}\": must start with 0, got {got}.";
    InvalidArgument splits_end(input: &str, last: i64, values: &str, count: usize)
        "input \"{input}\": ends at {last}, but \"{values}\" has {count} values.";
    InvalidArgument splits_decrease(input: &str, before: i64, after: i64)
        "input \"{input}\": must not decrease, got {before} then {after}.";
    InvalidArgument wrong_weights(input: &str, count: usize, shape: &str)
        "input \"{input}\": expected one weight per id ({count}), got {shape}.";
    InvalidArgument unknown_key(input: &str, key: &str, position: usize, known: &str)
        "input \"{input}\": {key} at position {position} is not in its vocabulary of {known}.";
}

// Tables by id.
faults! {
    InvalidArgument too_many_table_ids(count: usize, limit: usize)
        "input \"ids\": {count} ids, the limit is {limit} per request.";
    InvalidArgument rows_key(key: &str, hint: &str)
        "Unknown key: {key}. A :rows request has: ids, a list of row ids; labels, true or false.{hint}";
    InvalidArgument labels_no_flag() "\"labels\" must be true or false.";
    InvalidArgument ids_not_flat(rank: usize) "input \"ids\": expected a flat list of row ids, got rank {rank}.";
}

// gRPC messages.
faults! {
    ResourceExhausted too_many_parts(limit: usize, what: &str)
        "The request has more than {limit} {what}. Send it in several requests.";
    InvalidArgument not_a_message(name: &str, hint: &str) "The request is not a valid {name} message{hint}.";
    InvalidArgument no_model_spec() "Missing ModelSpec";
    InvalidArgument no_model_name() "ModelSpec has no name specified.";
    InvalidArgument undecodable_tensor(input: &str) "tensor parsing error: {input}";
    InvalidArgument wrong_content_size(input: &str, sent: usize, wanted: usize)
        "tensor parsing error: {input}: tensor_content has {sent} bytes, its shape and dtype take {wanted}.";
    InvalidArgument tensor_too_large(input: &str, shape: &str, size: &str, limit: usize)
        "tensor parsing error: {input}: shape {shape} has {size} elements, the limit is {limit}.";
    InvalidArgument too_many_values(input: &str, values: usize, size: usize)
        "tensor parsing error: {input}: {values} values, its shape has room for {size}.";
}

// tf.Examples. Source: `tensorflow_serving/servables/tensorflow/{classifier,regressor,multi_inference,util}.cc` (9d981c5).
faults! {
    InvalidArgument no_input() "Input is empty.";
    InvalidArgument not_one_input(signature: &str, count: usize)
        "Expected one input Tensor. Signature \"{signature}\" has {count}: send it to Predict.";
    InvalidArgument number_of_class_outputs(count: usize) "Expected one or two output Tensors, found {count}";
    InvalidArgument not_one_output() "Expected one output Tensor.";
    InvalidArgument no_class_inputs(definition: &str) "No classification inputs found in SignatureDef: {definition}";
    InvalidArgument no_class_outputs(definition: &str)
        "Expected classification signature outputs to contain at least one of \"classes\" or \"scores\". Signature was: {definition}";
    InvalidArgument no_regression_inputs(definition: &str) "No regression inputs found in SignatureDef: {definition}";
    InvalidArgument no_regression_outputs(definition: &str) "No regression outputs found in SignatureDef: {definition}";
    Unimplemented unknown_method_name(name: &str) "Unsupported signature method_name: {name}";
    InvalidArgument class_shape(shape: &str) "Expected Tensor shape: [batch_size num_classes] but got {shape}";
    InvalidArgument class_dtype(output: &str, wanted: &str, dtype: &str) "Expected {output} Tensor of {wanted}. Got: {dtype}";
    InvalidArgument class_rows(output: &str, wanted: usize, rows: usize)
        "Expected {output} output batch size of {wanted}. Got: {rows}";
    InvalidArgument classes_differ(classes: usize, scores: usize)
        "Tensors class and score should match in dim_size(1). Got {classes} vs. {scores}";
    InvalidArgument regression_shape(shape: &str)
        "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got {shape}";
    InvalidArgument regression_rows(wanted: usize, rows: usize)
        "Input batch size did not match output batch size: {wanted} vs. {rows}";
    InvalidArgument regression_dtype(dtype: &str) "Expected output Tensor of DT_FLOAT.  Got: {dtype}";
    InvalidArgument task_without_model() "Found ModelSpec with an empty model name.";
    InvalidArgument task_of_another_model()
        "All ModelSpecs in a MultiInferenceRequest must access the same model name.";
    InvalidArgument task_twice(signature: &str) "Duplicate evaluation of signature: {signature}";
    InvalidArgument no_examples_key(shown: &str)
        "JSON Value: {shown} When method is classify, key 'examples' is expected and was not found";
    InvalidArgument examples_no_list(shown: &str) "JSON Value: {shown} Expecting 'examples' value to be an list/array";
    InvalidArgument no_examples(shown: &str) "JSON Value: {shown} 'examples' value is an empty array";
    InvalidArgument example_no_object(kind: &str) "Example must be JSON object but got JSON {kind}";
    InvalidArgument feature_element(feature: &str, kind: &str)
        "Feature: {feature} has element with unexpected JSON type: {kind}";
    InvalidArgument feature_of_kinds(feature: &str, kind: &str)
        "Unexpected element type in feature: {feature} expecting type: {kind}";
    InvalidArgument feature_beyond_int64(feature: &str)
        "Feature: {feature} has uint64_t element. Only int64_t is supported.";
}

// JSON documents.
faults! {
    InvalidArgument json_syntax(problem: &str) "JSON Parse error: {problem}";
    InvalidArgument json_not_object(shown: &str, hint: &str)
        "JSON Value: {shown} Is not object; the request's body must be a JSON object{hint}";
    InvalidArgument json_key_twice(key: &str) "JSON object has the key \"{key}\" twice";
    ResourceExhausted json_keys(limit: usize) "The JSON document has more than {limit} keys; send columns, or fewer rows.";
    ResourceExhausted json_lists(limit: usize) "The JSON document has more than {limit} lists and objects; send fewer rows.";
    ResourceExhausted json_strings(limit: usize) "The JSON document has more than {limit} strings; send fewer rows.";
    InvalidArgument signature_name_no_string(shown: &str)
        "JSON Value: {shown} not formatted correctly. 'signature_name' key must be a string value.";
    InvalidArgument lookup_keys(unknown: &str, hint: &str)
        "Unknown keys: {unknown}. A lookup has: features, signature_name, weights.{hint}";
    InvalidArgument no_lookup(signature: &str, instead: &str)
        "Signature \"{signature}\" is a prediction's: send its requests to :predict{instead}.";
    InvalidArgument key_missing(key: &str) "\"{key}\" is missing.";
    InvalidArgument key_no_object(key: &str)
        "\"{key}\" must be an object that has, under each feature's name, a list with one entry per row.";
    InvalidArgument weights_without_ids(feature: &str) "feature \"{feature}\": weights were sent without ids.";
    InvalidArgument unknown_feature(signature: &str, feature: &str, known: Names)
        "signature \"{signature}\" has no feature \"{feature}\". Features it takes: {known}.";
    InvalidArgument weights_of_dense(feature: &str) "feature \"{feature}\" has one id per row and takes no weights.";
    InvalidArgument no_input_map(signature: &str) "Failed to get input map for signature: {signature}";
    InvalidArgument no_inputs_key(hint: &str) "Missing 'inputs' or 'instances' key{hint}";
    InvalidArgument inputs_and_instances(shown: &str)
        "JSON Value: {shown} Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ";
    InvalidArgument instances_no_list(shown: &str) "JSON Value: {shown} Expecting 'instances' to be an list/array";
    InvalidArgument no_instances(shown: &str) "JSON Value: {shown} No values in 'instances' array";
    InvalidArgument not_an_object(row: usize) "Expecting object but got list at item {row} of input list";
    InvalidArgument not_a_list(row: usize) "Expecting value/list but got object at item {row} of input list";
    InvalidArgument other_keys(row: usize, described: &str, keys: &str)
        "Failed to process element: {row} of 'instances' list. JSON object: {described} keys must be equal to: {keys}";
    InvalidArgument bad_element(row: usize, key: &str, code: &str, text: &str)
        "Failed to process element: {row}{key} of 'instances' list. Error: {code}: {text}";
    InvalidArgument several_inputs(problem: &str, features: Names)
        "{problem} as multiple input tensors required: {features}";
    InvalidArgument plain_list()
        "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map";
    InvalidArgument plain_value()
        "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map";
    InvalidArgument missing_named_input(name: &str) "Missing named input: {name} in 'inputs' object.";
    InvalidArgument no_named_input(name: &str, hint: &str) "JSON object: does not have named input: {name}{hint}";
    InvalidArgument part_in_rows(input: &str, feature: &str)
        "input \"{input}\": in instances, send \"{feature}\" as a list of ids.";
    InvalidArgument feature_twice(feature: &str, part: &str)
        "feature \"{feature}\" was sent both as \"{feature}\" and as \"{part}\".";
    InvalidArgument other_name(feature: &str) "feature \"{feature}\": its inputs were sent by another name too.";
    InvalidArgument no_weights(feature: &str, signature: &str)
        "feature \"{feature}\" takes no weights in signature \"{signature}\".";
}

// Elements of JSON tensors.
faults! {
    InvalidArgument no_rows_of_lists(what: &str, of_what: &str, described: &str)
        "{what}: expected one list of {of_what} per row, got JSON Value: {described}";
    InvalidArgument number_does_not_fit(input: &str, number: &str, dtype: &str)
        "input \"{input}\": {number} does not fit {dtype}.";
    InvalidArgument mixed_keys(input: &str) "input \"{input}\": strings and ids are mixed; send one or the other.";
    InvalidArgument wrong_element(input: &str, described: &str, dtype: &str, hint: &str)
        "input \"{input}\": JSON Value: {described} is not of expected type: {dtype}{hint}";
    InvalidArgument uneven_lists(input: &str, size: usize, other: usize, position: usize)
        "input \"{input}\": Expecting tensor size: {size} but got: {other} (list {position} of its level)";
    InvalidArgument too_deep(input: &str, limit: usize) "input \"{input}\": lists are nested over {limit} deep.";
    InvalidArgument mixed_levels(input: &str, described: &str, first: &str)
        "input \"{input}\": Encountered list at unexpected level: JSON Value: {described} beside {first}";
    InvalidArgument rows_of_weights(feature: &str, rows: usize, weights: usize)
        "feature \"{feature}\": {rows} rows of ids but {weights} rows of weights.";
    InvalidArgument lists_differ(feature: &str, input: &str)
        "feature \"{feature}\": its lists and those of another feature need the same \"{input}\", but differ.";
    InvalidArgument row_of_weights(feature: &str, row: usize, ids: usize, weights: usize)
        "feature \"{feature}\": row {row} has {ids} ids but {weights} weights.";
    InvalidArgument no_base64_object(shown: &str) "JSON Value: {shown} not formatted correctly for base64 data";
    InvalidArgument bad_base64() "Unable to base64 decode";
    InvalidArgument wrong_level(shown: &str, level: usize, wanted: usize)
        "JSON Value: {shown} found at incorrect level: {level} in the JSON DOM. Expected at level: {wanted}";
    InvalidArgument list_too_deep(level: usize, limit: usize) "Encountered list at unexpected level: {level} expected < {limit}";
    InvalidArgument list_size(size: usize, level: usize, wanted: usize)
        "Encountered list at unexpected size: {size} at level: {level} expected size: {wanted}";
    InvalidArgument wrong_leaf(shown: &str, kind: &str, dtype: &str)
        "JSON Value: {shown} Type: {kind} is not of expected type: {dtype}";
    Unimplemented no_json_form(shown: &str, dtype: &str) "Conversion of JSON Value: {shown} to type: {dtype}";
    InvalidArgument output_without_json(dtype: &str) "Failed to write JSON value for tensor type: {dtype}";
    InvalidArgument tensor_size(wanted: usize, size: usize) "Expecting tensor size: {wanted} but got: {size}";
    InvalidArgument tensor_shape(wanted: &str, shape: &str) "Expecting shape {wanted} but got: {shape}";
    InvalidArgument nested_over(limit: usize) "lists are nested over {limit} deep.";
    InvalidArgument scalar_output(name: &str) "Tensor name: {name} has no shape information ";
    InvalidArgument batch_size(name: &str, size: usize, wanted: usize)
        "Tensor name: {name} has inconsistent batch size: {size} expecting: {wanted}";
}

// The Open Inference Protocol.
faults! {
    InvalidArgument no_model() "The request names no model.";
    InvalidArgument long_version(version: &str) "Version {version} is not a number of 64 bits.";
    InvalidArgument header_too_long(text: &str, num_bytes: usize)
        "Inference-Header-Content-Length is {text}, but the body has {num_bytes} bytes.";
    InvalidArgument input_twice(input: &str) "input \"{input}\" was sent twice.";
    InvalidArgument member_type(owner: &str, key: &str, wanted: &str, described: &str)
        "{owner}: expected \"{key}\" to be {wanted}, got {described}";
    InvalidArgument no_tensors(key: &str, described: &str)
        "expected \"{key}\" to be a list of objects with a name each, got {described}";
    InvalidArgument parameter_not_supported(owner: &str, name: &str) "{owner}: the parameter \"{name}\" is not supported.";
    InvalidArgument tensor_parameter(kind: &str, tensor: &str, name: &str)
        "{kind} \"{tensor}\": the parameter \"{name}\" is not supported.";
    InvalidArgument signature_parameter() "the parameter \"signature_name\" must be a string_param.";
    InvalidArgument output_datatype() "the parameter \"output_datatype\" must be \"FP32\", \"FP16\" or \"BF16\".";
    InvalidArgument data_and_binary(input: &str) "input \"{input}\": it has both \"data\" and binary_data_size.";
    InvalidArgument binary_without_header(input: &str)
        "input \"{input}\": binary data needs the header Inference-Header-Content-Length.";
    InvalidArgument binary_size(input: &str, shown: &str, left: usize)
        "input \"{input}\": binary_data_size is {shown}, but {left} bytes are left of the body.";
    InvalidArgument bytes_of_no_input(count: usize) "{count} bytes of the body belong to no input.";
    InvalidArgument unknown_datatype(input: &str, datatype: &str)
        "input \"{input}\": unknown datatype \"{datatype}\". Datatypes: BF16, BOOL, BYTES, FP16, FP32, FP64, INT16, INT32, INT64, INT8, UINT16, UINT32, UINT64, UINT8.";
    InvalidArgument too_many_dimensions(input: &str, count: usize, limit: usize)
        "input \"{input}\": its shape has {count} dimensions, the limit is {limit}.";
    InvalidArgument negative_size(input: &str, shape: &str) "input \"{input}\": its shape {shape} has a negative size.";
    InvalidArgument shape_too_large(input: &str, shape: &str) "input \"{input}\": its shape {shape} is too large.";
    InvalidArgument number_of_values(input: &str, count: usize, shape: &str, size: usize)
        "input \"{input}\": {count} values, its shape {shape} needs {size}.";
    InvalidArgument number_of_contents(input: &str, count: usize, field: &str, datatype: &str, shape: &str, size: usize)
        "input \"{input}\": {count} values in {field}, {datatype} of shape {shape} needs {size}.";
    InvalidArgument number_of_bytes(input: &str, count: usize, datatype: &str, shape: &str, wanted: usize)
        "input \"{input}\": {count} bytes of data, {datatype} of shape {shape} needs {wanted}.";
    InvalidArgument too_few_bytes(input: &str, count: usize, elements: usize)
        "input \"{input}\": {count} bytes of data are too few for {elements} elements of BYTES, each of them after its length in 4 bytes.";
    InvalidArgument element_too_long(input: &str, element: usize, count: usize)
        "input \"{input}\": element {element} of BYTES ends beyond its {count} bytes of data.";
    InvalidArgument bytes_left(input: &str, count: usize)
        "input \"{input}\": {count} bytes of data are left after the last element.";
    InvalidArgument raw_contents(raw: usize, inputs: usize) "{raw} raw_input_contents were sent for {inputs} inputs.";
    InvalidArgument contents_and_raw(input: &str)
        "input \"{input}\": it has contents beside raw_input_contents; send one of the two.";
    InvalidArgument no_contents_field(input: &str, datatype: &str)
        "input \"{input}\": {datatype} has no contents field, send it as raw_input_contents.";
    InvalidArgument output_without_datatype(output: &str, dtype: &str)
        "output \"{output}\": {dtype} has no datatype in this protocol; ask for the other outputs only, or use TensorFlow Serving's gRPC API.";
    InvalidArgument output_not_utf8(output: &str)
        "output \"{output}\": it holds bytes that are not UTF-8, which JSON can not carry; ask for it with the parameter \"binary_data\": true.";
}

/// Returns the sentence that names the features which a predict lacks.
#[must_use]
#[cold]
pub fn missing_features(names: &[&str]) -> String {
    format!("{} {} missing.", quoted(names), if names.len() == 1 { "is" } else { "are" })
}

/// Returns the sentence that says how to send a feature with a list of ids per row.
#[must_use]
#[cold]
pub fn form_of_lists(feature: &str, values: &str, splits: &str) -> String {
    format!("\"{feature}\" takes a list of ids per row, or the tensors \"{values}\" and \"{splits}\".")
}

/// Above so many unknown inputs, an error suggests no similar names.
const MAX_SENTENCES: usize = 3;

/// Returns the sentences that name the inputs which a signature does not have.
#[must_use]
#[cold]
pub fn unknown_inputs(names: &[&str], known: &[&str]) -> Vec<String> {
    let all = || format!(" Inputs: {}.", Names::sorted(known));
    if names.len() > MAX_SENTENCES {
        return vec![format!("There are no inputs {}.{}", quoted(names), all())];
    }
    let near: Vec<String> = names.iter().map(|name| did_you_mean(name, known.iter().copied())).collect();
    let told = |(name, near): (&&str, &String)| {
        format!("There is no input \"{name}\"{}", if near.is_empty() { "." } else { near })
    };
    let mut sentences: Vec<String> = names.iter().zip(&near).map(told).collect();
    if let Some(last) = sentences.last_mut().filter(|_| near.iter().any(String::is_empty)) {
        last.push_str(&all());
    }
    sentences
}

fn quoted(names: &[&str]) -> Names {
    Names::listed(names.iter().map(|name| format!("\"{name}\"")))
}

/// Returns the error for a tensor of another rank than 1. `one`: what the input has in each row, such as an id.
#[must_use]
#[cold]
pub fn not_flat(input: &str, one: &str, dims: &[usize]) -> BoxedFault {
    let text = format!("input \"{input}\": expected a flat list, one {one} per row; the request has shape {dims:?}.");
    let in_instances = format!("input \"{input}\": in instances, send one {one}, not a list.");
    Fault::new(Code::InvalidArgument, text).or_in_instances(in_instances)
}

/// Returns the end of an error's text that names the models which the caller may see.
#[must_use]
#[cold]
pub fn models(names: Vec<String>) -> String {
    if names.is_empty() { "; no model is served here".to_owned() } else { format!("; models: {}", Names(names)) }
}

/// Returns the error for inputs whose names do not fit a lookup.
#[must_use]
#[cold]
pub fn lookup_names(signature: &str, extra: Names, missing: Names, features: Names) -> BoxedFault {
    let mut text = format!("Inputs do not fit signature \"{signature}\".");
    for (fault, names) in [("Sent extra", extra), ("Missing but required", missing), ("Features it takes", features)] {
        if !names.is_empty() {
            let _ = write!(text, " {fault}: {{{names}}}.");
        }
    }
    Fault::new(Code::InvalidArgument, text)
}

/// The kind of request that names a signature; TensorFlow Serving has a text for an unknown one for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A predict over gRPC, or a request of this server's own or the Open Inference Protocol.
    Predict,
    /// A predict over REST.
    RestPredict,
    /// Classify or Regress.
    Examples,
    /// A task of a `MultiInference`.
    Task,
}

/// Returns the error for an unknown signature.
#[must_use]
#[cold]
pub fn unknown_signature<'n>(name: &str, known: impl IntoIterator<Item = &'n str>, asked: Asked) -> BoxedFault {
    let known: Vec<&str> = known.into_iter().collect();
    let near = if name.is_empty() { String::new() } else { did_you_mean(name, known.iter().copied()) };
    let names = Names::sorted(known);
    let end = match (near.is_empty(), names.is_empty(), asked) {
        (false, ..) | (_, true, _) => near,
        (_, _, Asked::Predict) => format!(". Signatures: {names}"),
        _ => format!("; signatures: {names}"),
    };
    let name = if name.is_empty() { "serving_default" } else { name };
    let invalid = |begin: &str| Fault::new(Code::InvalidArgument, format!("{begin}: {name}{end}"));
    match asked {
        Asked::Predict => {
            let end = if end.is_empty() { "." } else { &end };
            Fault::new(Code::FailedPrecondition, format!("Serving signature key \"{name}\" not found{end}"))
        }
        Asked::RestPredict => {
            let text = format!("Serving signature name: \"{name}\" not found in signature def{end}");
            Fault::new(Code::InvalidArgument, text)
        }
        Asked::Examples => invalid("No signature was found with the name"),
        Asked::Task => invalid("Requested signature not found in model graph"),
    }
}

/// Most names that a text of ours lists; texts of TensorFlow Serving list all.
const MAX_NAMES: usize = 10;

/// A list of names in an error text of ours: at most ten, and how many more there are.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

impl Names {
    /// Says whether the list has no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the list of these names, in their order.
    #[must_use]
    pub fn listed<S: ToString>(names: impl IntoIterator<Item = S>) -> Self {
        Names(names.into_iter().map(|name| name.to_string()).collect())
    }

    /// Returns the list of these names, each once, in sorted order.
    #[must_use]
    pub fn sorted<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        Names(names)
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, name) in self.0.iter().take(MAX_NAMES).enumerate() {
            write!(formatter, "{}{name}", if i > 0 { ", " } else { "" })?;
        }
        match self.0.len().saturating_sub(MAX_NAMES) {
            0 => Ok(()),
            more => write!(formatter, ", and {more} more"),
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_ours_names_at_most_ten_names() {
        let names = |count: usize| Names::sorted((0..count).rev().map(|i| format!("f{i:02}")));
        assert_eq!(names(2).to_string(), "f00, f01");
        assert_eq!(names(10).to_string(), "f00, f01, f02, f03, f04, f05, f06, f07, f08, f09");
        assert!(names(12).to_string().ends_with("f08, f09, and 2 more"));
    }

    #[test]
    fn an_unknown_signature_has_the_text_of_its_api_and_a_suggestion() {
        let known = ["serving_default", "lookup"];
        let text = |name, asked| unknown_signature(name, known, asked).text;
        let predict = "Serving signature key \"x\" not found.";
        assert_eq!(text("x", Asked::Predict), format!("{predict} Signatures: lookup, serving_default"));
        assert_eq!(unknown_signature("x", [], Asked::Predict).text, predict);
        assert_eq!(text("lokup", Asked::Predict), "Serving signature key \"lokup\" not found; did you mean lookup?");
        let rest = "Serving signature name: \"x\" not found in signature def; signatures: lookup, serving_default";
        assert_eq!(text("x", Asked::RestPredict), rest);
        let near = "No signature was found with the name: lokup; did you mean lookup?";
        assert_eq!(text("lokup", Asked::Examples), near);
        let task = "Requested signature not found in model graph: serving_default; signatures: lookup";
        assert_eq!(unknown_signature("", ["lookup"], Asked::Task).text, task);
    }

    #[test]
    fn a_fault_keeps_the_first_model_and_takes_the_signature() {
        let fault = unknown_model("m").of_model("m").of_model("n");
        assert_eq!((fault.code, &*fault.text), (Code::NotFound, "Servable not found for request: Latest(m)"));
        assert_eq!(fault.subject.model, "m");
        let subject = Subject { model: "m".into(), version: Some(3), signature: "lookup".into() };
        assert_eq!(fault.at(subject.clone()).subject, subject);
    }
}
