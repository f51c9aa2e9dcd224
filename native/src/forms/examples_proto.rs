//! Handles the gRPC methods `Classify`, `Regress` and `MultiInference` of `tensorflow.serving.PredictionService`.
//!
//! The graph gets the bytes of each Example as the client sent them, as in TensorFlow Serving; the form only checks that
//! they are Examples. It reads requests in the usual encoding; `usual.rs` rewrites all others.
//!
//! Source: `tensorflow_serving/apis/{input,classification,regression,inference}.proto` (9d981c5),
//! `tensorflow/core/example/{example,feature}.proto` (2.21).

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use super::built_size::{check_num_messages, check_num_strings};
use super::examples::{Method, Run, Task, record, response, write_input};
use super::model_spec::{ModelSpec, write_spec};
use super::protobuf::{Fields, Value, map_entry, read_varint, set_once, text, write_delimited};
use super::record::{is_drawn, log_record};
use super::usual::{EXAMPLES_REQUEST, MULTI_INFERENCE_REQUEST, answer_usual};
use super::{Answered, Call};
use crate::plan::faults::{self, Asked, BoxedFault};
use crate::plan::{Declined, Effort, Servable, Version};

/// A request with more bytes is parsed on the thread pool for large work.
const SMALL_REQUEST: usize = 64 << 10;

/// Field number of `PredictionLog.multi_inference_log`.
const MULTI_INFERENCE_LOG: u32 = 4;

/// The Examples of a request, with the shared context before each.
type Examples<'m> = Vec<Cow<'m, [u8]>>;

/// Answers a `ClassificationRequest`.
///
/// # Errors
/// The reason why the handler declines the request; [`Declined`] says what the server then does.
pub fn classify(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    const REQUEST: &str = "tensorflow.serving.ClassificationRequest";
    check_size(call.effort, message)?;
    answer_usual(&EXAMPLES_REQUEST, message, |message| one(call, Method::Classify, message))
        .map_err(|declined| declined.of_message(REQUEST, message))
}

/// Answers a `RegressionRequest`.
///
/// # Errors
/// As [`classify`].
pub fn regress(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    const REQUEST: &str = "tensorflow.serving.RegressionRequest";
    check_size(call.effort, message)?;
    answer_usual(&EXAMPLES_REQUEST, message, |message| one(call, Method::Regress, message))
        .map_err(|declined| declined.of_message(REQUEST, message))
}

/// Answers a `MultiInferenceRequest`.
///
/// # Errors
/// As [`classify`].
pub fn multi_inference(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    const REQUEST: &str = "tensorflow.serving.MultiInferenceRequest";
    check_size(call.effort, message)?;
    answer_usual(&MULTI_INFERENCE_REQUEST, message, |message| multi(call, message))
        .map_err(|declined| declined.of_message(REQUEST, message))
}

/// Returns the model name in a `MultiInferenceRequest`, of which perhaps only the first bytes are received; "" if there
/// is no readable name. The other methods have it where a predict has it.
#[must_use]
pub fn multi_inference_model(message: &[u8]) -> &str {
    let first = |message| {
        Fields::of(message).map_while(Result::ok).find_map(|field| match field {
            (1, Value::Delimited(bytes)) => Some(bytes),
            _ => None,
        })
    };
    first(message).and_then(first).and_then(|spec| ModelSpec::read(spec).ok()).map_or("", |spec| spec.model)
}

/// Parses any bytes as a `ClassificationRequest`, for the fuzz targets.
#[doc(hidden)]
pub fn fuzz(message: &[u8]) {
    let _ = answer_usual(&EXAMPLES_REQUEST, message, |message| {
        let _ = ModelSpec::of_request(message);
        read_input(message).map(drop)
    });
}

fn check_size(effort: Effort<'_>, message: &[u8]) -> Result<(), Declined> {
    if effort == Effort::Small && message.len() > SMALL_REQUEST { Err(Declined::TooLarge) } else { Ok(()) }
}

fn one(call: &Call<'_>, method: Method, message: &[u8]) -> Result<Answered, Declined> {
    let spec = ModelSpec::of_request(message)?;
    let servable = call.find(spec.model, spec.version)?;
    let signature = servable.find_signature(spec.signature, "", Asked::Examples, spec.version == Version::Latest)?;
    let run = || {
        let task = Task::new(servable, signature, method, call.effort)?;
        let examples = read_input(message)?;
        let run = Run::new(call, servable, &[task], &examples)?;
        let body = response(servable, signature, &run.results[0]);
        let record = record(call, servable, method, signature, &examples, || body.clone());
        Ok(run.answered(signature, body.into(), record))
    };
    run().map_err(|declined: Declined| declined.at(|| servable.subject(signature)))
}

/// A task of a `MultiInferenceRequest`.
struct TaskRead<'m> {
    spec: ModelSpec<'m>,
    method_name: &'m str,
}

impl<'m> TaskRead<'m> {
    fn read(message: &'m [u8]) -> Result<Self, Declined> {
        let (mut spec, mut method_name) = (None, None);
        for field in Fields::of(message) {
            match field? {
                (1, Value::Delimited(bytes)) => set_once(&mut spec, bytes)?,
                (2, Value::Delimited(bytes)) => set_once(&mut method_name, text(bytes)?)?,
                _ => return Err(Declined::Unusual),
            }
        }
        let spec = ModelSpec::read(spec.unwrap_or_default())?;
        Ok(TaskRead { spec, method_name: method_name.unwrap_or_default() })
    }

    fn signature(&self) -> &'m str {
        if self.spec.signature.is_empty() { "serving_default" } else { self.spec.signature }
    }
}

fn multi(call: &Call<'_>, message: &[u8]) -> Result<Answered, Declined> {
    let mut read = Vec::new();
    for field in Fields::of(message) {
        match field? {
            (1, Value::Delimited(task)) => {
                read.push(TaskRead::read(task)?);
                check_num_messages(read.len())?;
            }
            (2, Value::Delimited(_)) => {}
            _ => return Err(Declined::Unusual),
        }
    }
    let first = &read.first().filter(|task| !task.spec.model.is_empty()).ok_or_else(faults::no_model_name)?.spec;
    // All tasks run on the version that the first one names.
    let servable = call.find(first.model, first.version)?;
    let is_latest = first.version == Version::Latest;
    let mut tasks: Vec<Task> = Vec::new();
    let mut seen = HashSet::new();
    for task in &read {
        // The tasks before the one with a fault are checked first.
        if let Some(fault) = misplaced(task, first.model, &mut seen) {
            return Err(fault.at(servable.subject(tasks[0].signature)).into());
        }
        let signature = servable.find_signature(task.signature(), "", Asked::Task, is_latest)?;
        let fits = Method::of_name(task.method_name)
            .map_err(Declined::from)
            .and_then(|method| Task::new(servable, signature, method, call.effort));
        tasks.push(fits.map_err(|declined| declined.at(|| servable.subject(signature)))?);
    }
    let subject = || servable.subject(tasks[0].signature);
    let examples = read_input(message).map_err(|declined| declined.at(subject))?;
    let run = Run::new(call, servable, &tasks, &examples)?;
    let mut body = Vec::new();
    for (task, result) in tasks.iter().zip(&run.results) {
        let (mut one, message) = (Vec::new(), result.message());
        write_spec(&mut one, 1, servable, &servable.signatures()[task.signature]);
        write_delimited(&mut one, result.field(), &message);
        write_delimited(&mut body, 1, &one);
    }
    let record = is_drawn(call, servable)
        .then(|| log_record(MULTI_INFERENCE_LOG, &logged_request(servable, &tasks, &examples), &body));
    Ok(run.answered(tasks[0].signature, body.into(), record))
}

/// Returns why a task can not stand beside those before it.
fn misplaced<'m>(task: &TaskRead<'m>, model: &str, seen: &mut HashSet<&'m str>) -> Option<BoxedFault> {
    if task.spec.model.is_empty() {
        return Some(faults::task_without_model());
    }
    if task.spec.model != model {
        return Some(faults::task_of_another_model());
    }
    (!seen.insert(task.signature())).then(|| faults::task_twice(task.signature()))
}

/// Returns the `MultiInferenceRequest` for the log of the model: it names the version that answered.
fn logged_request(servable: &Arc<Servable>, tasks: &[Task], examples: &[Cow<'_, [u8]>]) -> Vec<u8> {
    let mut request = Vec::new();
    for task in tasks {
        let mut one = Vec::new();
        write_spec(&mut one, 1, servable, &servable.signatures()[task.signature]);
        write_delimited(&mut one, 2, task.method.name().as_bytes());
        write_delimited(&mut request, 1, &one);
    }
    write_input(&mut request, 2, examples);
    request
}

/// Reads the Examples in field 2 of a request.
///
/// Two concatenated protobuf messages are one message with the fields of both, and of a feature in both the later one
/// counts: so the context stands before each Example.
fn read_input(message: &[u8]) -> Result<Examples<'_>, Declined> {
    let mut input = None;
    for field in Fields::of(message) {
        match field? {
            (1, Value::Delimited(_)) => {}
            (2, Value::Delimited(bytes)) => set_once(&mut input, bytes)?,
            _ => return Err(Declined::Unusual),
        }
    }
    let mut list = None;
    for field in Fields::of(input.unwrap_or_default()) {
        match field? {
            (number @ 1..=2, Value::Delimited(bytes)) => set_once(&mut list, (number, bytes))?,
            _ => return Err(Declined::Unusual),
        }
    }
    let (number, list) = list.unwrap_or_default();
    let (mut examples, mut context, mut count) = (Vec::new(), None, Count::default());
    for field in Fields::of(list) {
        match field? {
            (1, Value::Delimited(example)) => {
                count.add_messages(1)?;
                count.check_example(example)?;
                examples.push(example);
            }
            (2, Value::Delimited(example)) if number == 2 => {
                count.check_example(example)?;
                set_once(&mut context, example)?;
            }
            _ => return Err(Declined::Unusual),
        }
    }
    if examples.is_empty() {
        return Err(faults::no_input().into());
    }
    Ok(match context {
        Some(context) => examples.into_iter().map(|example| [context, example].concat().into()).collect(),
        None => examples.into_iter().map(Cow::Borrowed).collect(),
    })
}

/// The messages and strings of a request, which are limited as those of every message.
#[derive(Default)]
struct Count {
    messages: usize,
    strings: usize,
}

impl Count {
    fn add_messages(&mut self, more: usize) -> Result<(), Declined> {
        self.messages += more;
        check_num_messages(self.messages)
    }

    /// Checks that the bytes are an Example in the usual encoding.
    fn check_example(&mut self, example: &[u8]) -> Result<(), Declined> {
        let mut features = None;
        for field in Fields::of(example) {
            match field? {
                (1, Value::Delimited(bytes)) => set_once(&mut features, bytes)?,
                _ => return Err(Declined::Unusual),
            }
        }
        for field in Fields::of(features.unwrap_or_default()) {
            let (1, Value::Delimited(entry)) = field? else { return Err(Declined::Unusual) };
            // The entry and its feature are messages.
            self.add_messages(2)?;
            let (name, feature) = map_entry(entry)?;
            text(name)?;
            self.check_feature(feature)?;
        }
        Ok(())
    }

    fn check_feature(&mut self, feature: &[u8]) -> Result<(), Declined> {
        let mut list = None;
        for field in Fields::of(feature) {
            match field? {
                (number @ 1..=3, Value::Delimited(bytes)) => set_once(&mut list, (number, bytes))?,
                _ => return Err(Declined::Unusual),
            }
        }
        let (kind, list) = list.unwrap_or_default();
        for field in Fields::of(list) {
            match (kind, field?) {
                (1, (1, Value::Delimited(_))) => {
                    self.strings += 1;
                    check_num_strings(self.strings)?;
                }
                (2, (1, Value::Fixed32(_))) | (3, (1, Value::Varint(_))) => {}
                (2, (1, Value::Delimited(packed))) if packed.len().is_multiple_of(4) => {}
                (2, (1, Value::Delimited(_))) => return Err(Declined::Malformed),
                (3, (1, Value::Delimited(mut packed))) => {
                    while !packed.is_empty() {
                        read_varint(&mut packed)?;
                    }
                }
                _ => return Err(Declined::Unusual),
            }
        }
        Ok(())
    }
}
