//! Runs signatures on serialized tf.Examples, as Classify and Regress do: which outputs they read, what these must be,
//! and the messages of the results.
//!
//! A request may name any signature with fitting inputs and outputs: as TensorFlow Serving, the check ignores the
//! signature's method name, because all signatures of TensorFlow 2 have "predict" there.
//!
//! Source: `tensorflow_serving/servables/tensorflow/{classifier,regressor,multi_inference}.cc`,
//! `tensorflow_serving/apis/{classification,regression,input}.proto` (9d981c5).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use super::model_spec::write_spec;
use super::protobuf::{delimited_len, write_delimited, write_delimited_header};
use super::record::{self, LogRecord};
use super::{Answered, Call};
use crate::plan::faults::{self, BoxedFault};
use crate::plan::{
    BatchPlace, Data, DataType, Declined, Effort, Notes, OutputShape, Servable, Signature, SignatureKind, Strings,
    Tensor, Waiting, Work,
};

const INPUTS: &str = "inputs";
const CLASSES: &str = "classes";
const SCORES: &str = "scores";
const OUTPUTS: &str = "outputs";

/// Bytes of a float32 with its tag, as a field of a message.
const FLOAT_FIELD_BYTES: usize = 5;

/// The methods that run a signature on tf.Examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Returns labels and scores of classes.
    Classify,
    /// Returns one value for each Example.
    Regress,
}

impl Method {
    /// Returns the method with this name in `InferenceTask.method_name`.
    ///
    /// # Errors
    /// There is no such method.
    pub fn of_name(name: &str) -> Result<Self, BoxedFault> {
        [Method::Classify, Method::Regress]
            .into_iter()
            .find(|method| method.name() == name)
            .ok_or_else(|| faults::unknown_method_name(name))
    }

    /// Returns the method's name in `InferenceTask.method_name`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Classify => "tensorflow/serving/classify",
            Method::Regress => "tensorflow/serving/regress",
        }
    }

    /// Returns the field number of the method's record in `PredictionLog`.
    #[must_use]
    pub fn log_field(self) -> u32 {
        match self {
            Method::Classify => 2,
            Method::Regress => 3,
        }
    }

    /// Returns the indexes of a signature's outputs that the method reads.
    ///
    /// # Errors
    /// The signature's inputs or outputs do not fit the method.
    fn outputs(self, signature: &Signature) -> Result<SmallVec<[usize; 2]>, BoxedFault> {
        let (num_outputs, definition) = (signature.outputs.len(), &signature.definition);
        if signature.inputs.len() != 1 {
            return Err(faults::not_one_input(&signature.name, signature.inputs.len()));
        }
        let has_input = signature.input(INPUTS.as_bytes()).is_some();
        let found = |names: &[&str]| names.iter().filter_map(|name| signature.output(name.as_bytes())).collect();
        match self {
            Method::Classify if !(1..=2).contains(&num_outputs) => Err(faults::number_of_class_outputs(num_outputs)),
            Method::Classify if !has_input => Err(faults::no_class_inputs(definition)),
            Method::Classify => match found(&[CLASSES, SCORES]) {
                outputs if SmallVec::is_empty(&outputs) => Err(faults::no_class_outputs(definition)),
                outputs => Ok(outputs),
            },
            Method::Regress if num_outputs != 1 => Err(faults::not_one_output()),
            Method::Regress if !has_input => Err(faults::no_regression_inputs(definition)),
            Method::Regress => match found(&[OUTPUTS]) {
                outputs if outputs.is_empty() => Err(faults::no_regression_outputs(definition)),
                outputs => Ok(outputs),
            },
        }
    }
}

/// A signature that a request runs by one of the methods.
pub struct Task {
    /// Index of the signature in its servable.
    pub signature: usize,
    /// The method of the request, or of its task.
    pub method: Method,
    outputs: SmallVec<[usize; 2]>,
}

impl Task {
    /// Checks that the signature fits the method, and that the thread may run it.
    ///
    /// # Errors
    /// [`Declined::Fault`], or as [`Signature::check_effort`].
    pub fn new(servable: &Servable, signature: usize, method: Method, effort: Effort<'_>) -> Result<Self, Declined> {
        let plan = &servable.signatures()[signature];
        let outputs = method.outputs(plan)?;
        if plan.kind == SignatureKind::Lookup {
            let input = plan.inputs.first().map_or("", |input| &*input.name);
            let (wanted, sent) = (DataType::Int64.name(), DataType::String.name());
            return Err(faults::wrong_graph_dtype(0, wanted, sent, input).into());
        }
        plan.check_effort(effort)?;
        Ok(Task { signature, method, outputs })
    }
}

/// The result of a task, whose shape and dtypes are checked.
pub enum Inferred {
    /// Labels and scores of classes, row after row; None for an output that the signature lacks.
    Classes {
        num_rows: usize,
        num_classes: usize,
        labels: Option<Vec<Vec<u8>>>,
        /// Little-endian float32.
        scores: Option<Vec<u8>>,
    },
    /// A value for each row, as little-endian float32.
    Values(Vec<u8>),
}

/// The results of a request, whose answer is not written yet.
pub struct Run<'s> {
    servable: &'s Arc<Servable>,
    began: Instant,
    ran: Duration,
    rows: usize,
    notes: Option<Box<Notes>>,
    /// The results of the tasks, in their order.
    pub results: SmallVec<[Inferred; 1]>,
}

impl<'s> Run<'s> {
    /// Runs the tasks of a request on its tf.Examples.
    ///
    /// Each task waits in the batch queue of its signature, whose limit holds for the Examples of the request. (In
    /// TensorFlow Serving, all tasks are one run with a queue of its own.) If one task can not, all run without batches.
    ///
    /// # Errors
    /// The reason why the handler declines the request; [`Declined`] says what the server then does.
    pub fn new(
        call: &Call<'_>,
        servable: &'s Arc<Servable>,
        tasks: &[Task],
        examples: &[Cow<'_, [u8]>],
    ) -> Result<Self, Declined> {
        let alone = call.effort.waiting().map(Waiting::alone);
        let are_batched = tasks.iter().all(|task| servable.signatures()[task.signature].is_batched());
        let effort = match (call.effort, &alone) {
            (effort, _) if are_batched || tasks.len() == 1 => effort,
            (Effort::Wait(_), Some(alone)) => Effort::Wait(alone),
            (effort, _) => {
                effort.check_alone()?;
                Effort::Any
            }
        };
        let began = Instant::now();
        let (mut results, mut instead, mut is_queued) = (SmallVec::new(), Vec::new(), false);
        for task in tasks {
            match run(call, effort, servable, task, examples) {
                Ok((result, noted)) => {
                    results.push(result);
                    instead.extend(noted.map(|notes| notes.instead).unwrap_or_default());
                }
                Err(Declined::Queued) => is_queued = true,
                Err(declined) => {
                    // The tasks before this one leave their queues.
                    effort.waiting().and_then(|waiting| waiting.batch.as_ref()).map(BatchPlace::take_queued);
                    return Err(declined.at(|| servable.subject(task.signature)));
                }
            }
        }
        if is_queued {
            return Err(Declined::Queued);
        }
        let (ran, notes) = (began.elapsed(), Notes::of_instead(instead).boxed());
        Ok(Run { servable, began, ran, rows: examples.len(), notes, results })
    }

    /// Returns the finished answer. `record`: the request's record for the log of its model.
    #[must_use]
    pub fn answered(self, signature: usize, body: Bytes, record: Option<Box<LogRecord>>) -> Answered {
        Answered {
            body,
            rows: self.rows,
            servable: Arc::clone(self.servable),
            signature,
            ran: self.ran,
            json_length: None,
            notes: self.notes,
            began: self.began,
            record,
        }
    }
}

fn run(
    call: &Call<'_>,
    effort: Effort<'_>,
    servable: &Arc<Servable>,
    task: &Task,
    examples: &[Cow<'_, [u8]>],
) -> Result<(Inferred, Option<Box<Notes>>), Declined> {
    let parts = examples.iter().map(|example| Cow::Borrowed(&**example)).collect();
    let (dims, data) = (smallvec![examples.len()], Data::Strings(Strings { parts }));
    let inputs = [Some(Tensor { dtype: DataType::String, dims, data })].into_iter().collect();
    let mut work = Work::prepare(servable, task.signature, inputs, &task.outputs, effort, call.max_response_bytes)?;
    let result = match task.method {
        Method::Classify => classes(&mut work, servable, task.signature, examples.len()),
        Method::Regress => values(&mut work, examples.len()),
    };
    let notes = work.finish()?;
    Ok((result?, notes))
}

fn classes(
    work: &mut Work<'_, '_>,
    servable: &Servable,
    signature: usize,
    num_rows: usize,
) -> Result<Inferred, Declined> {
    let shapes: SmallVec<[OutputShape; 2]> = work.outputs().into();
    let outputs = &servable.signatures()[signature].outputs;
    let (mut labels, mut scores, mut num_classes) = (None, None, 0);
    for (index, shape) in shapes.iter().enumerate() {
        let name = &*outputs[shape.output].name;
        let [rows, columns] = shape.dims[..] else { return Err(faults::class_shape(&shown(shape)).into()) };
        let wanted = if name == CLASSES { DataType::String } else { DataType::Float32 };
        if shape.dtype != wanted {
            return Err(faults::class_dtype(name, &proto_name(wanted), &proto_name(shape.dtype)).into());
        }
        if rows != num_rows {
            return Err(faults::class_rows(name, num_rows, rows).into());
        }
        if name == CLASSES {
            labels = Some(work.strings(index).to_vec());
        } else {
            if labels.is_some() && columns != num_classes {
                return Err(faults::classes_differ(num_classes, columns).into());
            }
            let mut bytes = Vec::new();
            work.append(index, &mut bytes)?;
            scores = Some(bytes);
        }
        num_classes = columns;
    }
    Ok(Inferred::Classes { num_rows, num_classes, labels, scores })
}

fn values(work: &mut Work<'_, '_>, num_rows: usize) -> Result<Inferred, Declined> {
    let shape = work.outputs()[0].clone();
    let ([rows] | [rows, 1]) = shape.dims[..] else { return Err(faults::regression_shape(&shown(&shape)).into()) };
    if rows != num_rows {
        return Err(faults::regression_rows(num_rows, rows).into());
    }
    if shape.dtype != DataType::Float32 {
        return Err(faults::regression_dtype(&proto_name(shape.dtype)).into());
    }
    let mut bytes = Vec::new();
    work.append(0, &mut bytes)?;
    Ok(Inferred::Values(bytes))
}

fn shown(shape: &OutputShape) -> String {
    let sizes: Vec<String> = shape.dims.iter().map(usize::to_string).collect();
    format!("[{}]", sizes.join(","))
}

fn proto_name(dtype: DataType) -> String {
    format!("DT_{}", dtype.graph_name().to_uppercase())
}

impl Inferred {
    /// Iterates over the classes of all rows, row after row: label and score, "" and 0 for an output that the signature
    /// lacks. A label that is not UTF-8 is replaced, because protobuf and JSON have only text.
    pub fn classes(&self) -> impl Iterator<Item = (Cow<'_, str>, [u8; 4])> {
        let (count, labels, scores) = match self {
            Inferred::Classes { num_rows, num_classes, labels, scores } => {
                (num_rows * num_classes, labels.as_deref(), scores.as_deref())
            }
            Inferred::Values(_) => (0, None, None),
        };
        let (scores, _) = scores.unwrap_or_default().as_chunks::<4>();
        (0..count).map(move |at| {
            let label = labels.and_then(|labels| labels.get(at)).map_or("".into(), |one| String::from_utf8_lossy(one));
            (label, scores.get(at).copied().unwrap_or_default())
        })
    }

    /// Returns a `ClassificationResult` or a `RegressionResult`.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        match self {
            Inferred::Classes { num_rows, num_classes, .. } => {
                let mut all = self.classes();
                let (mut row, mut class) = (Vec::new(), Vec::new());
                for _ in 0..*num_rows {
                    row.clear();
                    for (label, score) in all.by_ref().take(*num_classes) {
                        class.clear();
                        if !label.is_empty() {
                            write_delimited(&mut class, 1, label.as_bytes());
                        }
                        write_float(&mut class, 2, score);
                        write_delimited(&mut row, 1, &class);
                    }
                    write_delimited(&mut message, 1, &row);
                }
            }
            Inferred::Values(values) => {
                let (values, _) = values.as_chunks::<4>();
                for &value in values {
                    write_delimited_header(&mut message, 1, if is_default(value) { 0 } else { FLOAT_FIELD_BYTES });
                    write_float(&mut message, 1, value);
                }
            }
        }
        message
    }

    /// Returns the field number of the result in `InferenceResult`.
    #[must_use]
    pub fn field(&self) -> u32 {
        match self {
            Inferred::Classes { .. } => 2,
            Inferred::Values(_) => 3,
        }
    }
}

/// Says whether protobuf leaves out a float with these bytes; it writes -0.0.
fn is_default(float: [u8; 4]) -> bool {
    float == [0; 4]
}

fn write_float(to: &mut Vec<u8>, field: u8, float: [u8; 4]) {
    if !is_default(float) {
        to.push(field << 3 | 5);
        to.extend_from_slice(&float);
    }
}

/// Returns a `ClassificationResponse` or a `RegressionResponse`.
#[must_use]
pub fn response(servable: &Servable, signature: usize, result: &Inferred) -> Vec<u8> {
    let message = result.message();
    let mut body = Vec::with_capacity(message.len() + 64);
    write_delimited(&mut body, 1, &message);
    write_spec(&mut body, 2, servable, &servable.signatures()[signature]);
    body
}

/// Appends an `Input` with these Examples as the field with this number.
pub fn write_input(to: &mut Vec<u8>, field: u32, examples: &[Cow<'_, [u8]>]) {
    let list: usize = examples.iter().map(|example| delimited_len(1, example.len())).sum();
    write_delimited_header(to, field, delimited_len(1, list));
    write_delimited_header(to, 1, list);
    for example in examples {
        write_delimited(to, 1, example);
    }
}

/// Returns the record of a Classify or Regress if it is drawn for the log of its model. `response` makes its response.
pub fn record(
    call: &Call<'_>,
    servable: &Servable,
    method: Method,
    signature: usize,
    examples: &[Cow<'_, [u8]>],
    response: impl FnOnce() -> Vec<u8>,
) -> Option<Box<LogRecord>> {
    record::is_drawn(call, servable).then(|| {
        let mut request = Vec::new();
        write_spec(&mut request, 1, servable, &servable.signatures()[signature]);
        write_input(&mut request, 2, examples);
        record::log_record(method.log_field(), &request, &response())
    })
}
