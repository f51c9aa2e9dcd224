//! Words the error of a request that a graph has refused: TensorFlow's text first, then the inputs that may be the
//! reason, because that text names nodes of the graph, which a client does not know.
//!
//! The first line of a text is cut as in `service/graph/savedmodel.py`.

use super::declined::Declined;
use super::faults::{self, BoxedFault, Code, Fault};
use super::inputs::{DataType, Inputs, Tensor};
use super::numbers::integers;
use super::servable::Signature;
use super::validation::{row_counts, shape_faults};

/// Returns the error for a graph's run that failed with TensorFlow's code and message.
#[must_use]
pub fn graph_refusal(signature: &Signature, inputs: &Inputs<'_>, code: u32, message: &str) -> BoxedFault {
    let name = match code {
        3 => "InvalidArgumentError",
        8 => return faults::no_memory(first_line(message)),
        9 => "FailedPreconditionError",
        11 => "OutOfRangeError",
        12 => "UnimplementedError",
        // The system starts no threads for the graph's first run.
        14 => return Fault::new(Code::Unavailable, first_line(message).to_owned()),
        _ => return faults::graph_failed(format!("TensorFlow's code {code}: {message}")),
    };
    let text = Some(first_line(message)).filter(|text| !text.is_empty()).unwrap_or(name);
    if code == 12 {
        return Fault::new(Code::Unimplemented, text.to_owned());
    }
    let bad_id = bad_id(signature, inputs, text).unwrap_or_default();
    let told = [text.to_owned(), shape_faults(signature, inputs), bad_id, row_counts(signature, inputs)];
    let told: Vec<&str> = told.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    Fault::new(Code::InvalidArgument, told.join("; "))
}

/// Names, in the refusal of a lookup that was cut out of a graph, the input that has the refused id, as [`graph_refusal`]
/// does for a graph that runs whole.
#[must_use]
pub fn lookup_refusal(signature: &Signature, inputs: &Inputs<'_>, declined: Declined) -> Declined {
    let Declined::Fault(mut fault) = declined else { return declined };
    if let Some(told) = bad_id(signature, inputs, &fault.text) {
        fault.text = format!("{}; {told}", fault.text);
    }
    fault.into()
}

/// Returns the first line of a TensorFlow error text, without the names of functions around the failed node.
fn first_line(text: &str) -> &str {
    let text = text.trim();
    let text = text.strip_prefix("Graph execution error:").unwrap_or(text).trim();
    let mut line = text.lines().next().unwrap_or_default();
    // Before the message stand the functions in which the node lies, one after the other.
    while line.starts_with("{{node ") || line.starts_with("{{function_node ") {
        let Some((mark, rest)) = line.split_once("}}") else { break };
        if mark.contains('}') {
            break;
        }
        line = rest.trim_start();
    }
    line.trim()
}

/// Returns the sentence for the only input that has the id which TensorFlow's text names.
///
/// The graph may have computed the id, so the sentence says no more than that the input has this number.
fn bad_id(signature: &Signature, inputs: &Inputs<'_>, text: &str) -> Option<String> {
    let bad = text.match_indices("indices[").find_map(|(at, start)| refused_index(&text[at + start.len()..]))?;
    let are_ids = |tensor: &Tensor<'_>| matches!(tensor.dtype, DataType::Int64 | DataType::Int32);
    let mut having = inputs.iter().filter(|(_, tensor)| are_ids(tensor)).filter_map(|(index, tensor)| {
        let position = integers(tensor).iter().position(|&id| id == bad)?;
        Some((&signature.inputs[index].name, position))
    });
    let (name, position) = having.next()?;
    having.next().is_none().then(|| format!("input \"{name}\": has {bad} at position {position}."))
}

/// Parses TensorFlow's text for an index without a row, behind `indices[`, of its ops Gather and `SparseSegmentSum`.
fn refused_index(text: &str) -> Option<i64> {
    let (place, rest) = text.split_once("] =")?;
    let is_place = place.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b' '));
    let rest = rest.strip_prefix('=').unwrap_or(rest).strip_prefix(' ')?;
    let (number, rest) = rest.split_once(' ')?;
    let is_refused = rest.starts_with("is not in [0, ") || rest.starts_with("out of range [0, ");
    if is_place && is_refused { number.parse().ok() } else { None }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_text_has_no_marks_of_nodes() {
        for (text, expected) in [
            ("bad input\n\t [[{{node a}}]]", "bad input"),
            ("Graph execution error:\n\nbad input\nmore", "bad input"),
            ("{{function_node f}} {{node g}} bad {{node h}}", "bad {{node h}}"),
            ("", ""),
        ] {
            assert_eq!(first_line(text), expected);
        }
    }

    #[test]
    fn an_index_without_a_row_is_found() {
        assert_eq!(refused_index("0,1] = 7 is not in [0, 5)"), Some(7));
        assert_eq!(refused_index("0] == -1 out of range [0, 5)"), Some(-1));
        assert_eq!(refused_index("x] = 7 is not in [0, 5)"), None);
        assert_eq!(refused_index("0] = 7 is in [0, 5)"), None);
    }
}
