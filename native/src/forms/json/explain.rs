//! Converts the values of a JSON document to the inputs of a signature, value by value and in TensorFlow Serving's order,
//! so that the first fault gets its text. Only bodies that the fast path (`reader`,
//! `tensors`) does not accept come here: most have a fault, a few have rare forms.
//!
//! Source: `tensorflow_serving/util/json_tensor.cc` (9d981c5).

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::Display;

use smallvec::smallvec;

use super::base64;
use super::document::parse_object;
use super::shown::{described, shown, shown_object, type_name};
use super::tensors::small_float;
use super::values::{Json, List};
use crate::forms::MAX_RANK;
use crate::plan::faults::{self, BoxedFault, Names};
use crate::plan::near_names::did_you_mean;
use crate::plan::{Data, DataType, Declined, Dims, Inputs, RaggedNames, Signature, Strings, Tensor, array_of};

/// Deepest nesting of JSON lists in which a fault is searched for in TensorFlow Serving's order.
const MAX_DEPTH: usize = 200;
/// Largest number of rows in which a fault is searched for in TensorFlow Serving's order.
const MAX_ROWS: usize = 1_000_000;
/// Objects with more members are searched by a hash map.
const FEW_MEMBERS: usize = 32;

/// The members of a JSON object.
pub type Object<'a> = Vec<(Cow<'a, str>, Json<'a>)>;
type Result<T> = std::result::Result<T, Declined>;

/// Returns the value of a member of an object.
#[must_use]
pub fn member<'o, 'a>(object: &'o Object<'a>, key: &str) -> Option<&'o Json<'a>> {
    object.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The members of an object by name. An object may have hundreds of thousands, so that each search must be short.
enum Members<'o, 'a> {
    Few(&'o Object<'a>),
    Many(HashMap<&'o str, &'o Json<'a>>),
}

impl<'o, 'a> Members<'o, 'a> {
    fn of(object: &'o Object<'a>) -> Self {
        if object.len() <= FEW_MEMBERS {
            return Members::Few(object);
        }
        Members::Many(object.iter().map(|(name, value)| (&**name, value)).collect())
    }

    fn get(&self, name: &str) -> Option<&'o Json<'a>> {
        match self {
            Members::Few(object) => member(object, name),
            Members::Many(values) => values.get(name).copied(),
        }
    }
}

/// The inputs of a JSON request, and the names that it has and its signature lacks.
pub struct Decoded<'a> {
    /// The tensors, by the indexes of the signature's inputs.
    pub inputs: Inputs<'a>,
    /// Names that are sent and that the signature lacks.
    pub extra: Vec<String>,
}

/// The properties of an input by which a JSON value is converted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Dtype of the input's tensor.
    pub dtype: DataType,
    /// Whether the input takes strings.
    pub takes_strings: bool,
    /// Whether the input takes only keys, never ids.
    pub takes_keys: bool,
    /// Whether the input's ids belong to a table.
    pub has_table: bool,
}

impl Wanted {
    /// Returns what an input without vocabulary and table takes.
    #[must_use]
    pub fn plain(dtype: DataType) -> Self {
        Wanted { dtype, takes_strings: dtype == DataType::String, takes_keys: false, has_table: false }
    }

    fn of(signature: &Signature, index: usize) -> Self {
        let input = &signature.inputs[index];
        Wanted {
            dtype: input.dtype,
            takes_strings: input.takes_strings,
            takes_keys: input.takes_keys,
            has_table: input.vocabulary_size.is_some(),
        }
    }
}

/// Returns the signature's name in a JSON body; "" if it is missing.
///
/// # Errors
/// It is no string.
pub fn signature_name(document: &Object<'_>) -> std::result::Result<String, BoxedFault> {
    match member(document, "signature_name") {
        None => Ok(String::new()),
        Some(Json::Text(name)) => Ok(name.to_string()),
        Some(_) => Err(faults::signature_name_no_string(&shown_object(document))),
    }
}

/// The keys of a `:lookup` body.
const LOOKUP_KEYS: [&str; 3] = ["features", "signature_name", "weights"];

/// Returns the sentence that suggests the known key which is most similar to an unknown one; "" if none is similar.
fn near_key<'n>(unknown: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    did_you_mean(unknown, known).replacen("; did", " Did", 1)
}

/// Returns the sentence for a `:lookup` body with an unknown key: the form of a lookup of the feature that the body names.
fn lookup_hint(document: &Object<'_>, unknown: &str) -> String {
    let form = |feature: &str| format!("{{\"features\": {{\"{feature}\": [...]}}}}");
    let rows = member(document, "instances").or_else(|| member(document, "inputs"));
    if let Some(rows) = rows {
        let first = match rows {
            Json::List(list) => list.mixed().and_then(|rows| rows.first()),
            rows => Some(rows),
        };
        let feature = match first {
            Some(Json::Object(columns)) => columns.first().map(|(name, _)| &**name),
            _ => None,
        };
        return format!(" Send instances or inputs to :predict; a lookup is {}.", form(feature.unwrap_or("NAME")));
    }
    match member(document, unknown) {
        Some(Json::List(_)) if member(document, "features").is_none() => format!(" Did you mean {}?", form(unknown)),
        _ => near_key(unknown, LOOKUP_KEYS),
    }
}

/// A `:lookup` body whose features are still JSON.
pub struct LookupDocument<'a> {
    /// Name of the signature; "" if the client named none.
    pub signature_name: String,
    features: Object<'a>,
    weights: Object<'a>,
}

impl<'a> LookupDocument<'a> {
    /// Parses a `:lookup` body.
    ///
    /// # Errors
    /// [`Declined::Fault`].
    pub fn parse(body: &'a [u8], is_strict: bool) -> Result<Self> {
        let mut document = parse_object(body, is_strict)?;
        let mut unknown: Vec<_> =
            document.iter().map(|(key, _)| &**key).filter(|key| !LOOKUP_KEYS.contains(key)).collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            let hint = lookup_hint(&document, unknown[0]);
            return Err(faults::lookup_keys(&unknown.join(", "), &hint).into());
        }
        let signature_name = signature_name(&document);
        let features = take_object(&mut document, "features")?.ok_or_else(|| faults::key_missing("features"))?;
        let weights = take_object(&mut document, "weights")?.unwrap_or_default();
        let ids = Members::of(&features);
        if let Some((name, _)) = weights.iter().find(|(name, _)| ids.get(name).is_none()) {
            return Err(faults::weights_without_ids(name).into());
        }
        Ok(LookupDocument { signature_name: signature_name?, features, weights })
    }

    /// Converts the features to the inputs of the signature.
    ///
    /// # Errors
    /// [`Declined::Fault`].
    pub fn inputs(&self, signature: &Signature) -> Result<Decoded<'a>> {
        let mut inputs = Inputs::new(signature.inputs.len());
        let all_weights = Members::of(&self.weights);
        for (name, value) in &self.features {
            let weights = all_weights.get(name).filter(|weights| !matches!(weights, Json::Null));
            if let Some(names) = signature.ragged(name) {
                add_ragged(&mut inputs, signature, names, &Value::One(value), weights.map(Value::One).as_ref())?;
                continue;
            }
            let index = signature.input(name.as_bytes()).filter(|&index| signature.ragged_owner(index).is_none());
            let Some(index) = index else {
                let known = Names::sorted(signature.json_names());
                return Err(faults::unknown_feature(&signature.name, name, known).into());
            };
            if weights.is_some() {
                return Err(faults::weights_of_dense(name).into());
            }
            if has_uneven_lists(value) {
                return Err(faults::takes_no_lists(name, array_of(signature, name)).into());
            }
            inputs.insert(index, dense(name, &Value::One(value), Wanted::of(signature, index))?);
        }
        Ok(Decoded { inputs, extra: Vec::new() })
    }
}

/// Takes a member that must be an object out of a document; None if it is missing.
fn take_object<'a>(document: &mut Object<'a>, key: &str) -> Result<Option<Object<'a>>> {
    match document.iter_mut().find(|(name, _)| name == key) {
        None => Ok(None),
        Some((_, Json::Object(members))) => Ok(Some(std::mem::take(members))),
        Some(_) => Err(faults::key_no_object(key).into()),
    }
}

/// Parses the body `{"ids": [...], "labels": true}` of a `:rows` request; the second value says whether the answer has
/// the labels of the rows.
///
/// # Errors
/// [`Declined::Fault`].
pub fn table_ids(body: &[u8]) -> Result<(Vec<i64>, bool)> {
    let document = parse_object(body, false)?;
    let (mut ids, mut wants_labels) = (None, false);
    for (key, value) in &document {
        match (&**key, value) {
            ("ids", value) => ids = Some(value),
            ("labels", Json::Bool(wanted)) => wants_labels = *wanted,
            ("labels", _) => return Err(faults::labels_no_flag().into()),
            (key, _) => return Err(faults::rows_key(key, &near_key(key, ["ids", "labels"])).into()),
        }
    }
    let ids = ids.ok_or_else(|| faults::key_missing("ids"))?;
    if let Json::List(ids) = ids
        && let Some(key) = ids.iter().find(|id| matches!(**id, Json::Text(_)))
    {
        let hint = " (:rows reads rows by their ids; :lookup takes the keys of a vocabulary)";
        return Err(faults::wrong_element("ids", &described(&key), DataType::Int64.name(), hint).into());
    }
    let tensor = dense("ids", &Value::One(ids), Wanted::plain(DataType::Int64))?;
    match tensor.data {
        Data::Ints(ids) if tensor.dims.len() == 1 => Ok((ids, wants_labels)),
        _ => Err(faults::ids_not_flat(tensor.dims.len()).into()),
    }
}

/// A `:predict` body whose tensors are still JSON.
pub struct PredictDocument<'a> {
    /// Name of the signature; "" if the client named none.
    pub signature_name: String,
    document: Object<'a>,
}

impl<'a> PredictDocument<'a> {
    /// Parses a `:predict` body, as far as that needs no signature.
    ///
    /// # Errors
    /// [`Declined::Fault`].
    pub fn parse(body: &'a [u8], is_strict: bool) -> Result<Self> {
        let document = parse_object(body, is_strict)?;
        Ok(PredictDocument { signature_name: signature_name(&document)?, document })
    }

    /// Says whether the body has `instances`, so that the answer is written by row.
    #[must_use]
    pub fn is_by_row(&self) -> bool {
        member(&self.document, "instances").is_some()
    }

    /// Converts the tensors to the inputs of the signature.
    ///
    /// # Errors
    /// [`Declined::Fault`].
    pub fn inputs(&self, signature: &Signature) -> Result<Decoded<'a>> {
        let payload = self.payload(signature)?;
        let is_described = signature.is_described();
        let decoded = match self.decode(payload, signature) {
            Err(Declined::Fault(fault)) if fault.code == faults::Code::InvalidArgument && !is_described => {
                self.refuse(payload, signature)?;
                return Err(Declined::Fault(fault));
            }
            decoded => decoded?,
        };
        let has_fault = !decoded.extra.is_empty() || !signature.has_required(&decoded.inputs);
        if has_fault && !is_described {
            self.refuse(payload, signature)?;
            return Ok(Decoded { extra: Vec::new(), ..decoded });
        }
        Ok(decoded)
    }

    fn payload(&self, signature: &Signature) -> Result<&Json<'a>> {
        if signature.inputs.is_empty() {
            let name = if self.signature_name.is_empty() { "DEFAULT" } else { &self.signature_name };
            return Err(faults::no_input_map(name).into());
        }
        self.sent()
    }

    /// Returns the value of `instances` or of `inputs`.
    ///
    /// # Errors
    /// [`Declined::Fault`]: the body has neither or both, or `instances` is no list of rows.
    pub fn sent(&self) -> Result<&Json<'a>> {
        let (instances, inputs) = (member(&self.document, "instances"), member(&self.document, "inputs"));
        let text = || shown_object(&self.document);
        let fault = match (instances, inputs) {
            (None, None) if member(&self.document, "features").is_some() => {
                faults::no_inputs_key("; send features to :lookup")
            }
            (None, None) => {
                // A client may send any number of keys.
                let keys = self.document.iter().take(8);
                let hints = keys.map(|(key, _)| did_you_mean(key, ["inputs", "instances"]));
                let near = hints.max().unwrap_or_default();
                let name = self.document.iter().map(|(key, _)| &**key).find(|key| *key != "signature_name");
                faults::no_inputs_key(&match name {
                    Some(name) if near.is_empty() => {
                        format!("; did you mean {{\"instances\": [{{\"{name}\": ...}}]}}?")
                    }
                    _ => near,
                })
            }
            (None, Some(inputs)) => return Ok(inputs),
            (Some(_), Some(_)) => faults::inputs_and_instances(&text()),
            (Some(instances @ Json::List(list)), None) if !list.is_empty() => return Ok(instances),
            (Some(Json::List(_)), None) => faults::no_instances(&text()),
            (Some(_), None) => faults::instances_no_list(&text()),
        };
        Err(fault.into())
    }

    fn refuse(&self, payload: &Json<'_>, signature: &Signature) -> Result<()> {
        match payload {
            Json::List(instances) if self.is_by_row() => Ok(refuse_rows(instances, signature)?),
            _ => Ok(refuse_columns(payload, signature)?),
        }
    }

    fn decode(&self, payload: &Json<'a>, signature: &Signature) -> Result<Decoded<'a>> {
        let is_by_row = self.is_by_row();
        let columns: Vec<(&str, Value<'_, 'a>)> = match payload {
            Json::List(instances) if is_by_row => columns(instances, signature)?,
            Json::Object(members) if !is_base64(payload) => {
                members.iter().map(|(name, value)| (&**name, Value::One(value))).collect()
            }
            _ => {
                let problem = "inputs is a plain value/list, but expecting an object";
                vec![(only_feature(signature, problem)?, Value::One(payload))]
            }
        };
        let find = |name: &str| columns.iter().find(|(column, _)| *column == name).map(|(_, value)| value);
        // The ragged feature that a request sends as nested lists under this name. If its input of ids has the same
        // name, and the request has row splits, the value is the flat list of ids.
        let nested = |name: &str| {
            let names = signature.ragged(name)?;
            let is_flat = signature.input(name.as_bytes()).is_some() && find(names.row_splits(signature)).is_some();
            (!is_flat).then_some(names)
        };
        let mut inputs = Inputs::new(signature.inputs.len());
        let mut extra = Vec::new();
        for (name, value) in &columns {
            if let Some(names) = nested(name) {
                for part in [names.values(signature), names.row_splits(signature)] {
                    if part != names.feature && find(part).is_some() {
                        return Err(faults::feature_twice(&names.feature, part).into());
                    }
                }
                let weights = find(&names.weights).filter(|weights| !matches!(weights, Value::One(Json::Null)));
                add_ragged(&mut inputs, signature, names, value, weights)?;
                continue;
            }
            let is_weights = |names: &RaggedNames| {
                names.weights == *name && find(&names.feature).is_some() && nested(&names.feature).is_some()
            };
            if signature.ragged_names.iter().any(is_weights) {
                continue;
            }
            let Some(index) = signature.input(name.as_bytes()) else {
                extra.push((*name).to_owned());
                continue;
            };
            if is_by_row
                && let Some(owner) = signature.ragged_owner(index)
                && owner.has_suffixes(signature)
            {
                return Err(faults::part_in_rows(name, &owner.feature).into());
            }
            inputs.insert(index, dense(name, value, Wanted::of(signature, index))?);
        }
        Ok(Decoded { inputs, extra })
    }
}

/// Returns the columns of `instances`: their values by name.
fn columns<'t, 'a>(instances: &'t List<'a>, signature: &'t Signature) -> Result<Vec<(&'t str, Value<'t, 'a>)>> {
    let rows = match instances {
        List::Mixed(rows) if matches!(&rows[0], Json::Object(_)) && !is_base64(&rows[0]) => rows,
        list => {
            let problem = "instances is a plain list, but expecting list of objects";
            return Ok(vec![(only_feature(signature, problem)?, Value::List(list))]);
        }
    };
    let mut objects = Vec::with_capacity(rows.len());
    for (position, row) in rows.iter().enumerate() {
        match row {
            Json::Object(members) => objects.push(members),
            _ => return Err(faults::not_an_object(position).into()),
        }
    }
    let first = objects[0];
    let mut columns: Vec<(&str, Vec<&Json<'a>>)> = first.iter().map(|(name, _)| (&**name, Vec::new())).collect();
    for (position, object) in objects.iter().enumerate() {
        let mut has_all = object.len() == first.len();
        let by_name = OnceCell::new();
        for (at, (name, values)) in columns.iter_mut().enumerate() {
            // Most objects have their keys in the order of the first one.
            let value = object.get(at).filter(|(key, _)| key == name).map(|(_, value)| value);
            match value.or_else(|| by_name.get_or_init(|| Members::of(object)).get(name)) {
                Some(value) => values.push(value),
                None => has_all = false,
            }
        }
        if !has_all {
            let mut keys: Vec<_> = first.iter().map(|(name, _)| &**name).collect();
            keys.sort_unstable();
            return Err(faults::other_keys(position, &described(&rows[position]), &keys.join(",")).into());
        }
    }
    Ok(columns.into_iter().map(|(name, values)| (name, Value::Column(values))).collect())
}

fn only_feature<'s>(signature: &'s Signature, problem: &str) -> Result<&'s str> {
    let mut names: Vec<&str> = signature.json_names().collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [only] => Ok(only),
        _ => Err(faults::several_inputs(problem, Names::sorted(names)).into()),
    }
}

/// Says whether a JSON value has the form `{"b64": "..."}`, which stands for bytes.
#[must_use]
pub fn is_base64(value: &Json<'_>) -> bool {
    matches!(value, Json::Object(members) if matches!(&members[..], [(key, Json::Text(_))] if key == "b64"))
}

/// Returns the bytes of a value of this form.
///
/// # Errors
/// The value has another form, or is no base64.
pub fn from_base64(value: &Json<'_>) -> std::result::Result<Vec<u8>, BoxedFault> {
    let Json::Object(members) = value else { return Err(faults::no_base64_object(&shown(value))) };
    let [(_, Json::Text(text))] = &members[..] else { return Err(faults::no_base64_object(&shown(value))) };
    if !is_base64(value) {
        return Err(faults::no_base64_object(&shown(value)));
    }
    base64::decode(text).ok_or_else(faults::bad_base64)
}

/// A value that is to become a tensor: one JSON value, or a column of `instances` with a value from each row.
pub enum Value<'t, 'a> {
    One(&'t Json<'a>),
    /// A list, such as `instances` without names.
    List(&'t List<'a>),
    /// The values of a column of `instances`.
    Column(Vec<&'t Json<'a>>),
}

/// The elements of a list or of a column.
enum Items<'t, 'a> {
    List(&'t List<'a>),
    Column(&'t [&'t Json<'a>]),
}

impl<'t, 'a> Items<'t, 'a> {
    fn len(&self) -> usize {
        match self {
            Items::List(list) => list.len(),
            Items::Column(values) => values.len(),
        }
    }

    fn get(&self, index: usize) -> Cow<'t, Json<'a>> {
        match self {
            Items::List(List::Ints(numbers)) => Cow::Owned(Json::Int(numbers[index].into())),
            Items::List(List::Mixed(values)) => Cow::Borrowed(&values[index]),
            Items::Column(values) => Cow::Borrowed(values[index]),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Cow<'t, Json<'a>>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl<'a> Value<'_, 'a> {
    /// Returns the elements; for a value that is no list, the value.
    fn items(&self) -> std::result::Result<Items<'_, 'a>, &Json<'a>> {
        match self {
            Value::One(Json::List(list)) => Ok(Items::List(list)),
            Value::List(list) => Ok(Items::List(list)),
            Value::One(value) => Err(value),
            Value::Column(values) => Ok(Items::Column(values)),
        }
    }
}

/// Says whether a value is a list of lists of different lengths, as a ragged feature takes them.
fn has_uneven_lists(value: &Json<'_>) -> bool {
    let Json::List(list) = value else { return false };
    let pairs = list.mixed().unwrap_or_default().windows(2);
    pairs.into_iter().any(|pair| matches!(pair, [Json::List(one), Json::List(next)] if one.len() != next.len()))
}

fn is_list(value: &Json<'_>) -> bool {
    matches!(value, Json::List(_))
}

fn list_of<'t, 'a>(value: &Cow<'t, Json<'a>>) -> Option<&'t List<'a>> {
    match value {
        Cow::Borrowed(Json::List(list)) => Some(list),
        _ => None,
    }
}

/// Converts nested JSON lists to a tensor, and a single JSON value to a tensor of rank 0.
///
/// # Errors
/// [`Declined::Fault`].
pub fn dense<'a>(name: &str, value: &Value<'_, 'a>, wanted: Wanted) -> Result<Tensor<'a>> {
    let items = match value.items() {
        Ok(items) => items,
        Err(value) => return leaves(name, &[Items::Column(&[value])], wanted, Dims::new()),
    };
    let mut dims = Dims::new();
    let mut level = vec![items];
    loop {
        let size = level.first().map_or(0, Items::len);
        if let Some(position) = level.iter().position(|list| list.len() != size) {
            return Err(faults::uneven_lists(name, size, level[position].len(), position).into());
        }
        dims.push(size);
        let flat = || level.iter().flat_map(Items::iter);
        let is_flat = |list: &Items<'_, '_>| matches!(list, Items::List(List::Ints(_)));
        if level.iter().all(is_flat) || !flat().any(|item| is_list(&item)) {
            break;
        }
        if dims.len() == MAX_RANK {
            return Err(faults::too_deep(name, MAX_RANK).into());
        }
        let mut below = Vec::new();
        for item in flat() {
            match list_of(&item) {
                Some(list) => below.push(Items::List(list)),
                None => return Err(mixed_levels(name, flat()).into()),
            }
        }
        level = below;
    }
    leaves(name, &level, wanted, dims)
}

fn mixed_levels<'t, 'a: 't>(name: &str, mut flat: impl Iterator<Item = Cow<'t, Json<'a>>>) -> BoxedFault {
    let first = flat.next().unwrap_or(Cow::Owned(Json::Null));
    let wrong = flat.find(|item| is_list(item) != is_list(&first)).unwrap_or(Cow::Owned(Json::Null));
    faults::mixed_levels(name, &described(&wrong), &described(&first))
}

/// Converts the leaves in these lists to a tensor.
fn leaves<'a>(name: &str, lists: &[Items<'_, 'a>], wanted: Wanted, dims: Dims) -> Result<Tensor<'a>> {
    use DataType as D;
    let dtype = wanted.dtype;
    let flat = || lists.iter().flat_map(Items::iter);
    let is_string = |item: &Json<'_>| matches!(item, Json::Text(_) | Json::Object(_));
    let mut is_empty = true;
    let are_strings = flat().all(|item| {
        is_empty = false;
        is_string(&item)
    });
    if !is_empty && are_strings && wanted.takes_strings {
        let mut parts = Vec::new();
        for item in flat() {
            parts.push(match item {
                Cow::Borrowed(Json::Text(Cow::Borrowed(text))) => Cow::Borrowed(text.as_bytes()),
                item => match &*item {
                    Json::Text(text) => Cow::Owned(text.as_bytes().to_vec()),
                    other => Cow::Owned(from_base64(other)?),
                },
            });
        }
        return Ok(Tensor { dtype: D::String, dims, data: Data::Strings(Strings { parts }) });
    }
    let is_allowed = |item: &Json<'_>| match dtype {
        D::String => is_string(item),
        D::Bool => matches!(item, Json::Bool(_)),
        D::Float16 | D::Bfloat16 | D::Float32 | D::Float64 => matches!(item, Json::Int(_) | Json::Float(_)),
        D::Complex64 | D::Complex128 => false,
        _ => matches!(item, Json::Int(_)),
    };
    if let Some(wrong) = flat().find(|item| !is_allowed(item)) {
        let has = |test: fn(&Json<'_>) -> bool| flat().any(|item| test(&item));
        let are_keys = wanted.takes_strings && has(|item| matches!(item, Json::Text(_)));
        if are_keys && dtype != D::String && has(|item| matches!(item, Json::Int(_))) {
            return Err(faults::mixed_keys(name).into());
        }
        // Among keys, the strings are right.
        let wrong = flat().find(|item| are_keys && !is_string(item)).unwrap_or(wrong);
        let hint = match &*wrong {
            Json::Text(_) if wanted.has_table && wanted.takes_keys => " (its vocabulary has integers)",
            Json::Text(_) if wanted.has_table => " (it has no vocabulary, send ids)",
            Json::Int(_) if wanted.takes_keys => " (send the strings of its vocabulary)",
            Json::List(_) if wanted.has_table => " (one list too many around the ids)",
            Json::Float(number) if number.is_nan() && dtype.integer_range().is_some() => " (NaN is no id)",
            Json::Float(number) if dtype.integer_range().is_some() && number.abs() >= 2f64.powi(63) => {
                " (out of range)"
            }
            Json::Float(_) if dtype.integer_range().is_some() => " (send whole numbers)",
            _ => "",
        };
        let dtype = if are_keys { D::String } else { dtype };
        // rapidjson has no text for NaN.
        let shown = match &*wrong {
            Json::Float(number) if number.is_nan() => "NaN Type: Number".to_owned(),
            other => described(other),
        };
        return Err(faults::wrong_element(name, &shown, dtype.name(), hint).into());
    }
    #[allow(clippy::cast_precision_loss, reason = "numpy rounds JSON numbers to float64, too")]
    let floats = || {
        flat().map(|item| match *item {
            Json::Int(number) => number as f64,
            Json::Float(number) => number,
            _ => 0.0,
        })
    };
    #[allow(clippy::cast_possible_truncation, reason = "numpy rounds float64 to float32, too")]
    let data = match dtype {
        D::String => Data::Strings(Strings::default()),
        D::Bool => Data::Bytes(flat().map(|item| u8::from(matches!(*item, Json::Bool(true)))).collect()),
        D::Float16 | D::Bfloat16 => Data::Bytes(floats().flat_map(|number| small_float(dtype, number)).collect()),
        D::Float32 => Data::Floats(floats().map(|number| number as f32).collect()),
        D::Float64 => Data::Bytes(floats().flat_map(f64::to_le_bytes).collect()),
        D::Complex64 | D::Complex128 => Data::Bytes(Vec::new()),
        _ => integers(name, dtype, flat())?,
    };
    Ok(Tensor { dtype, dims, data })
}

fn integers<'t, 'a: 't>(
    name: &str,
    dtype: DataType,
    flat: impl Iterator<Item = Cow<'t, Json<'a>>>,
) -> Result<Data<'static>> {
    let (low, high) = dtype.integer_range().unwrap_or((i128::MIN, i128::MAX));
    let mut numbers = Vec::new();
    for item in flat {
        let number = if let Json::Int(number) = *item { number } else { 0 };
        if number < low || number > high {
            return Err(faults::number_does_not_fit(name, &number.to_string(), dtype.name()).into());
        }
        numbers.push(number);
    }
    if matches!(dtype, DataType::Int64 | DataType::Int32) {
        return Ok(Data::Ints(numbers.into_iter().flat_map(i64::try_from).collect()));
    }
    let width = dtype.size();
    Ok(Data::Bytes(numbers.into_iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)).collect()))
}

/// Converts one JSON list per row to the ids and row splits of a ragged feature, and to its weights if sent.
fn add_ragged<'a>(
    inputs: &mut Inputs<'a>,
    signature: &Signature,
    names: &RaggedNames,
    rows: &Value<'_, 'a>,
    weights: Option<&Value<'_, 'a>>,
) -> Result<()> {
    let feature = &names.feature;
    if inputs.has(names.values) {
        return Err(faults::other_name(feature).into());
    }
    let wanted = Wanted::of(signature, names.values);
    let of_what = if wanted.takes_strings { "keys or ids" } else { "ids" };
    let ids = flat_rows(format_args!("feature \"{feature}\""), rows, of_what)?;
    let lengths: Vec<usize> = ids.iter().map(Items::len).collect();
    let mut end = 0;
    let ends = lengths.iter().map(|length| {
        end += length;
        i64::try_from(end).unwrap_or(i64::MAX)
    });
    let splits: Vec<i64> = std::iter::once(0).chain(ends).collect();
    let values = leaves(feature, &ids, wanted, smallvec![end_of(&splits)])?;
    inputs.insert(names.values, values);
    let dtype = signature.inputs[names.row_splits].dtype;
    let splits = Tensor { dtype, dims: smallvec![splits.len()], data: Data::Ints(splits) };
    add_shared(inputs, signature, feature, names.row_splits, splits)?;
    let Some(weights) = weights else { return Ok(()) };
    let Some(index) = names.weights_input else {
        return Err(faults::no_weights(feature, &signature.name).into());
    };
    let factors = flat_rows(format_args!("weights of feature \"{feature}\""), weights, "weights")?;
    if factors.len() != lengths.len() {
        return Err(faults::rows_of_weights(feature, lengths.len(), factors.len()).into());
    }
    let mut pairs = factors.iter().map(Items::len).zip(&lengths).enumerate();
    if let Some((row, (factors, &ids))) = pairs.find(|(_, (factors, ids))| factors != *ids) {
        return Err(faults::row_of_weights(feature, row, ids, factors).into());
    }
    let count = lengths.iter().sum();
    let factors = leaves(&names.weights, &factors, Wanted::of(signature, index), smallvec![count])?;
    add_shared(inputs, signature, feature, index, factors)
}

/// Adds row splits or weights, which several features may take from one input: their lists must then say the same.
fn add_shared<'a>(
    inputs: &mut Inputs<'a>,
    signature: &Signature,
    feature: &str,
    index: usize,
    tensor: Tensor<'a>,
) -> Result<()> {
    let is_same = match inputs.get(index).map(|other| (&other.data, &tensor.data)) {
        None => true,
        Some((Data::Ints(other), Data::Ints(own))) => other == own,
        Some((Data::Floats(other), Data::Floats(own))) => {
            other.iter().map(|number| number.to_bits()).eq(own.iter().map(|number| number.to_bits()))
        }
        Some(_) => false,
    };
    if !is_same {
        return Err(faults::lists_differ(feature, &signature.inputs[index].name).into());
    }
    inputs.insert(index, tensor);
    Ok(())
}

fn end_of(splits: &[i64]) -> usize {
    splits.last().and_then(|&end| usize::try_from(end).ok()).unwrap_or(0)
}

fn flat_rows<'v, 'a>(what: impl Display, rows: &'v Value<'_, 'a>, of_what: &str) -> Result<Vec<Items<'v, 'a>>> {
    let what = || what.to_string();
    let items = match rows.items() {
        Ok(items) => items,
        Err(value) => return Err(faults::no_rows_of_lists(&what(), of_what, &described(value)).into()),
    };
    let mut lists = Vec::with_capacity(items.len());
    for item in items.iter() {
        match list_of(&item) {
            Some(list) => lists.push(Items::List(list)),
            None => return Err(faults::no_rows_of_lists(&what(), of_what, &described(&item)).into()),
        }
    }
    Ok(lists)
}

fn sorted_inputs(signature: &Signature) -> Vec<&str> {
    let mut names: Vec<&str> = signature.inputs.iter().map(|input| &*input.name).collect();
    names.sort_unstable();
    names
}

/// Returns TensorFlow Serving's error for the first fault in the `instances` of a predict body.
fn refuse_rows(instances: &List<'_>, signature: &Signature) -> std::result::Result<(), BoxedFault> {
    let names = sorted_inputs(signature);
    if instances.len() > MAX_ROWS {
        return Ok(());
    }
    let is_object = |item: &Json<'_>| matches!(item, Json::Object(_)) && !is_base64(item);
    let mut shapes: Vec<Option<Dims>> = signature.inputs.iter().map(|_| None).collect();
    let mut are_objects = None;
    for (row, item) in instances.iter().enumerate() {
        if row == 0 && !matches!(*item, Json::Object(_)) && names.len() > 1 {
            return Err(faults::plain_list());
        }
        let are_objects = *are_objects.get_or_insert_with(|| is_object(&item));
        if is_object(&item) != are_objects {
            return Err(if are_objects { faults::not_an_object(row) } else { faults::not_a_list(row) });
        }
        let wrapped = |key: &str, fault: &BoxedFault| faults::bad_element(row, key, fault.code.name(), &fault.text);
        let Json::Object(members) = &*item else {
            refuse_item(names[0], &item, signature, &mut shapes).map_err(|fault| wrapped("", &fault))?;
            continue;
        };
        if !are_objects {
            refuse_item(names[0], &item, signature, &mut shapes).map_err(|fault| wrapped("", &fault))?;
            continue;
        }
        for (name, value) in members {
            let refused = refuse_item(name, value, signature, &mut shapes);
            refused.map_err(|fault| wrapped(&format!(" key: {name}"), &fault))?;
        }
        let is_sent = |name: &str| members.iter().any(|(key, _)| key == name);
        if signature.inputs.iter().any(|input| !input.is_optional && !is_sent(&input.name)) {
            return Err(faults::other_keys(row, &shown(&item), &names.join(",")));
        }
    }
    Ok(())
}

/// Returns TensorFlow Serving's error for the first fault in `inputs` of a predict body.
fn refuse_columns(inputs: &Json<'_>, signature: &Signature) -> std::result::Result<(), BoxedFault> {
    let names = sorted_inputs(signature);
    let wanted = |name: &str| signature.input(name.as_bytes()).map(|index| &signature.inputs[index]);
    let Json::Object(members) = inputs else {
        return refuse_plain(inputs, &names, signature);
    };
    if is_base64(inputs) {
        return refuse_plain(inputs, &names, signature);
    }
    for name in names {
        let Some(input) = wanted(name) else { continue };
        match members.iter().find(|(key, _)| key == name) {
            Some((_, value)) => drop(refuse_tensor(value, input.dtype)?),
            None if input.is_optional => {}
            None => return Err(faults::missing_named_input(name)),
        }
    }
    Ok(())
}

fn refuse_plain(value: &Json<'_>, names: &[&str], signature: &Signature) -> std::result::Result<(), BoxedFault> {
    if names.len() > 1 {
        return Err(faults::plain_value());
    }
    refuse_tensor(value, signature.inputs[0].dtype).map(drop)
}

fn refuse_item(
    name: &str,
    value: &Json<'_>,
    signature: &Signature,
    shapes: &mut [Option<Dims>],
) -> std::result::Result<(), BoxedFault> {
    let Some(index) = signature.input(name.as_bytes()) else {
        let known = signature.inputs.iter().map(|input| &*input.name);
        return Err(faults::no_named_input(name, &did_you_mean(name, known)));
    };
    let (shape, size) = refuse_tensor(value, signature.inputs[index].dtype)?;
    let first = shapes[index].get_or_insert_with(|| shape.clone());
    let wanted: usize = first.iter().product();
    if size != wanted {
        return Err(faults::tensor_size(wanted, size));
    }
    if shape != *first {
        return Err(faults::tensor_shape(&shape_text(first), &shape_text(&shape)));
    }
    Ok(())
}

fn shape_text(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(","))
}

/// Returns TensorFlow Serving's error for the first fault of a JSON tensor; the shape and the size of one without.
fn refuse_tensor(value: &Json<'_>, dtype: DataType) -> std::result::Result<(Dims, usize), BoxedFault> {
    let mut shape = Dims::new();
    let mut item = Some(value);
    while let Some(Json::List(list)) = item
        && shape.len() <= MAX_DEPTH
    {
        shape.push(list.len());
        item = match list {
            List::Ints(_) => None,
            List::Mixed(values) => values.first(),
        };
    }
    if shape.len() > MAX_DEPTH {
        return Err(faults::nested_over(MAX_DEPTH));
    }
    let size = refuse_values(value, 0, &shape, dtype)?;
    Ok((shape, size))
}

fn refuse_values(
    value: &Json<'_>,
    level: usize,
    shape: &[usize],
    dtype: DataType,
) -> std::result::Result<usize, BoxedFault> {
    let Json::List(list) = value else {
        if level != shape.len() {
            return Err(faults::wrong_level(&shown(value), level + 1, shape.len()));
        }
        refuse_leaf(value, dtype)?;
        return Ok(1);
    };
    let Some(&wanted) = shape.get(level) else { return Err(faults::list_too_deep(level, shape.len())) };
    if list.len() != wanted {
        return Err(faults::list_size(list.len(), level, wanted));
    }
    let mut size = 0;
    for item in list.iter() {
        size += refuse_values(&item, level + 1, shape, dtype)?;
    }
    Ok(size)
}

fn refuse_leaf(value: &Json<'_>, dtype: DataType) -> std::result::Result<(), BoxedFault> {
    use DataType as D;
    if dtype.is_complex() {
        return Err(faults::no_json_form(&shown(value), dtype.graph_name()));
    }
    let fits = match (dtype, value) {
        (D::String, Json::Object(_)) => return from_base64(value).map(drop),
        (D::String, Json::Text(_))
        | (D::Bool, Json::Bool(_))
        | (D::Float16 | D::Bfloat16 | D::Float32 | D::Float64, Json::Int(_) | Json::Float(_)) => true,
        (_, Json::Int(number)) => dtype.integer_range().is_some_and(|(low, high)| (low..=high).contains(number)),
        _ => false,
    };
    if fits { Ok(()) } else { Err(faults::wrong_leaf(&shown(value), type_name(value), dtype.graph_name())) }
}
