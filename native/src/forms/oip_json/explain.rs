//! Reads the body of an Open Inference `infer` request value by value, in the order of its fields, so that the
//! first fault is the one that is told. Only bodies that the fast reader (`request`) does not accept come here.

use std::borrow::Cow;
use std::collections::HashSet;

use smallvec::SmallVec;

use super::super::oip_binary::{
    DATATYPE_PARAMETER, REFUSED_PARAMETERS, SIGNATURE_PARAMETER, binary_tensor, checked_shape, dtype_of, output_half,
};

use super::request::{Input, Output, Request, Result};
use crate::forms::json::document::parse_object;
use crate::forms::json::explain::{Value, Wanted, dense};
use crate::forms::json::shown::{described, shown};
use crate::forms::json::tensors::small_float;
use crate::forms::json::values::Json;
use crate::plan::{self, DataType, Declined, faults};

const BINARY_SIZE: &str = "binary_data_size";

type Object<'a> = Vec<(Cow<'a, str>, Json<'a>)>;

/// A parsed body, whose tensors are not converted yet.
pub struct InferDocument<'a> {
    request: Request<'a>,
    inputs: Vec<InferInput<'a>>,
}

/// One input tensor of the request.
struct InferInput<'a> {
    name: String,
    datatype: String,
    sizes: Vec<i64>,
    data: Data<'a>,
}

enum Data<'a> {
    Values(Json<'a>),
    Binary(&'a [u8]),
}

impl<'a> InferDocument<'a> {
    /// Parses a body: its JSON, and the data of binary tensors. `has_header` says whether the request has the header
    /// Inference-Header-Content-Length.
    pub fn parse(json: &'a [u8], binary: &'a [u8], has_header: bool, is_strict: bool) -> Result<Self> {
        let mut document = parse_object(json, is_strict)?;
        let mut request = Request::default();
        let own = parameters(&document, "the request")?;
        if let Some(id) = member(&document, "id").filter(|id| !matches!(id, Json::Null)) {
            request.id = Some(text(Some(id), "id", "the request")?.into());
        }
        let tensors = match member(&document, "outputs") {
            None | Some(Json::Null) => Vec::new(),
            tensors => objects(tensors, "outputs")?,
        };
        for tensor in tensors {
            let name = text(member(tensor, "name"), "name", "an output")?;
            let owner = format!("output \"{name}\"");
            let of_output = parameters(tensor, &owner)?;
            let is_binary = match member(of_output, "binary_data") {
                None => None,
                value => Some(flag(value, "binary_data", &owner)?),
            };
            request.outputs.push(Output { name: name.into(), is_binary });
        }
        if let Some(name) = member(own, SIGNATURE_PARAMETER) {
            request.signature = text(Some(name), SIGNATURE_PARAMETER, "parameters")?.into();
        }
        if let Some(datatype) = member(own, DATATYPE_PARAMETER) {
            request.half = output_half(&text(Some(datatype), DATATYPE_PARAMETER, "parameters")?)?;
        }
        let is_binary = member(own, "binary_data_output").cloned();
        let inputs = inputs(&mut document, binary, has_header)?;
        request.is_binary = is_binary.is_some() && flag(is_binary.as_ref(), "binary_data_output", "parameters")?;
        Ok(InferDocument { request, inputs })
    }

    /// Returns the name of the signature; "" if the client named none.
    pub fn signature(&self) -> &str {
        &self.request.signature
    }

    /// Converts the tensors.
    pub fn request(mut self) -> Result<Request<'a>> {
        let mut tensors = SmallVec::new();
        for InferInput { name, datatype, sizes, data } in self.inputs {
            let dtype = dtype_of(datatype.as_bytes()).ok_or_else(|| faults::unknown_datatype(&name, &datatype))?;
            let tensor = match data {
                Data::Binary(data) => binary_tensor(&name, dtype, &sizes, data)?,
                Data::Values(values) => {
                    let (dims, size) = checked_shape(&name, &sizes)?;
                    // Values of a BF16 tensor are read as float32.
                    let written = if dtype == DataType::Bfloat16 { DataType::Float32 } else { dtype };
                    let mut tensor = dense(&name, &Value::One(&values), Wanted::plain(written))?;
                    let count: usize = tensor.dims.iter().product();
                    if count != size {
                        return Err(faults::number_of_values(&name, count, &format!("{sizes:?}"), size).into());
                    }
                    tensor.dims = dims;
                    if let (DataType::Bfloat16, plan::Data::Floats(numbers)) = (dtype, &tensor.data) {
                        let bytes = numbers.iter().flat_map(|&number| small_float(dtype, number.into())).collect();
                        (tensor.dtype, tensor.data) = (dtype, plan::Data::Bytes(bytes));
                    }
                    tensor
                }
            };
            tensors.push(Input { name: name.into(), tensor });
        }
        self.request.inputs = tensors;
        Ok(self.request)
    }
}

fn member<'o, 'a>(object: &'o [(Cow<'a, str>, Json<'a>)], key: &str) -> Option<&'o Json<'a>> {
    object.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn got(value: Option<&Json<'_>>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| format!("JSON Value: {}", described(value)))
}

fn text(value: Option<&Json<'_>>, key: &str, owner: &str) -> Result<String> {
    match value {
        Some(Json::Text(text)) => Ok(text.to_string()),
        value => Err(faults::member_type(owner, key, "a string", &got(value)).into()),
    }
}

fn flag(value: Option<&Json<'_>>, key: &str, owner: &str) -> Result<bool> {
    match value {
        Some(Json::Bool(flag)) => Ok(*flag),
        value => Err(faults::member_type(owner, key, "true or false", &got(value)).into()),
    }
}

/// Returns the elements of a member that must be a list of objects.
fn objects<'o, 'a>(value: Option<&'o Json<'a>>, key: &str) -> Result<Vec<&'o Object<'a>>> {
    let fault = || Declined::from(faults::no_tensors(key, &got(value)));
    let Some(Json::List(list)) = value else { return Err(fault()) };
    list.mixed()
        .ok_or_else(fault)?
        .iter()
        .map(|one| if let Json::Object(members) = one { Ok(members) } else { Err(fault()) })
        .collect()
}

/// Returns the parameters of the request, an input or an output.
fn parameters<'o, 'a>(owner: &'o Object<'a>, name: &str) -> Result<&'o [(Cow<'a, str>, Json<'a>)]> {
    let members = match member(owner, "parameters") {
        None | Some(Json::Null) => return Ok(&[]),
        Some(Json::Object(members)) => members,
        value => return Err(faults::member_type(name, "parameters", "an object", &got(value)).into()),
    };
    match REFUSED_PARAMETERS.iter().find(|refused| member(members, refused).is_some()) {
        Some(refused) => Err(faults::parameter_not_supported(name, refused).into()),
        None => Ok(members),
    }
}

fn inputs<'a>(document: &mut Object<'a>, binary: &'a [u8], has_header: bool) -> Result<Vec<InferInput<'a>>> {
    let mut found = Vec::new();
    let mut names = HashSet::new();
    let mut rest = binary;
    for tensor in objects(member(document, "inputs"), "inputs")? {
        let name = text(member(tensor, "name"), "name", "an input")?;
        if !names.insert(name.clone()) {
            return Err(faults::input_twice(&name).into());
        }
        let owner = format!("input \"{name}\"");
        let size = member(parameters(tensor, &owner)?, BINARY_SIZE).filter(|size| !matches!(size, Json::Null));
        let values = member(tensor, "data").filter(|data| !matches!(data, Json::Null));
        let data = match (size, values) {
            (None, Some(values @ Json::List(_))) => Data::Values(values.clone()),
            (None, values) => {
                return Err(faults::member_type(&owner, "data", "a list", &got(values)).into());
            }
            (Some(_), Some(_)) => return Err(faults::data_and_binary(&name).into()),
            (Some(_), None) if !has_header => return Err(faults::binary_without_header(&name).into()),
            (Some(size), None) => {
                let number = if let Json::Int(number) = size { usize::try_from(*number).ok() } else { None };
                let Some((data, after)) = number.and_then(|number| rest.split_at_checked(number)) else {
                    return Err(faults::binary_size(&name, &shown(size), rest.len()).into());
                };
                rest = after;
                Data::Binary(data)
            }
        };
        let datatype = text(member(tensor, "datatype"), "datatype", &owner)?;
        found.push(InferInput { name, datatype, sizes: shape(member(tensor, "shape"), &owner)?, data });
    }
    if rest.is_empty() { Ok(found) } else { Err(faults::bytes_of_no_input(rest.len()).into()) }
}

fn shape(value: Option<&Json<'_>>, owner: &str) -> Result<Vec<i64>> {
    let sizes = match value {
        Some(Json::List(list)) => list.integers(),
        _ => None,
    };
    // The size -2^63 has no opposite of 64 bits.
    sizes
        .filter(|sizes| !sizes.contains(&i64::MIN))
        .ok_or_else(|| faults::member_type(owner, "shape", "a list of integers of 64 bits", &got(value)).into())
}
