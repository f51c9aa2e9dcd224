//! Compares parsed and written tensors with those of the protobuf library prost.

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::plan::tests::is_fault;

#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    unknown_rank: bool,
}

/// A `TensorProto` as a message of the library prost, the oracle of these tests.
#[derive(Clone, PartialEq, Message)]
pub struct ProstTensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<Shape>,
    #[prost(int32, tag = "3")]
    version_number: i32,
    #[prost(bytes = "vec", tag = "4")]
    tensor_content: Vec<u8>,
    #[prost(int32, repeated, tag = "13")]
    half_val: Vec<i32>,
    #[prost(float, repeated, tag = "5")]
    pub(in crate::forms) float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    double_val: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    int_val: Vec<i32>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    string_val: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "10")]
    pub(in crate::forms) int64_val: Vec<i64>,
    #[prost(bool, repeated, tag = "11")]
    bool_val: Vec<bool>,
    #[prost(uint32, repeated, tag = "16")]
    uint32_val: Vec<u32>,
    #[prost(uint64, repeated, tag = "17")]
    uint64_val: Vec<u64>,
}

const DTYPES: [DataType; 13] = [
    DataType::Float32,
    DataType::Float64,
    DataType::Int32,
    DataType::Uint8,
    DataType::Int16,
    DataType::Int8,
    DataType::Int64,
    DataType::Bool,
    DataType::Bfloat16,
    DataType::Uint16,
    DataType::Float16,
    DataType::Uint32,
    DataType::Uint64,
];

impl ProstTensor {
    pub(in crate::forms) fn new(dtype: DataType, dims: &[usize]) -> Self {
        let dim = dims.iter().map(|&size| Dim { size: i64::try_from(size).expect("small"), name: "rows".to_owned() });
        ProstTensor {
            dtype: dtype as i32,
            tensor_shape: Some(Shape { dim: dim.collect(), unknown_rank: false }),
            ..ProstTensor::default()
        }
    }

    /// Adds numbers, given as their bits, to the `TensorProto` field that has numbers of this dtype, such as `int_val`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    fn add(&mut self, dtype: DataType, numbers: &[u64]) {
        for &bits in numbers {
            match dtype {
                DataType::Float32 => self.float_val.push(f32::from_bits(bits as u32)),
                DataType::Float64 => self.double_val.push(f64::from_bits(bits)),
                DataType::Int32 | DataType::Uint8 | DataType::Uint16 => self.int_val.push(bits as i32),
                DataType::Int16 => self.int_val.push(i32::from(bits as i16)),
                DataType::Int8 => self.int_val.push(i32::from(bits as i8)),
                DataType::Bfloat16 | DataType::Float16 => self.half_val.push(bits as i32),
                DataType::Int64 => self.int64_val.push(bits as i64),
                DataType::Bool => self.bool_val.push(bits != 0),
                DataType::Uint32 => self.uint32_val.push(bits as u32),
                DataType::Uint64 => self.uint64_val.push(bits),
                DataType::Complex64 | DataType::Complex128 => unreachable!("DTYPES has none of them"),
                DataType::String => self.string_val.push(bits.to_le_bytes().to_vec()),
            }
        }
    }
}

fn read(message: &[u8]) -> Result<Tensor<'_>, Declined> {
    read_tensor("x", message, &mut Allowance::of_request(message.len(), Effort::Any))
}

/// Returns the numbers of a tensor as little-endian bytes.
#[allow(clippy::cast_possible_truncation)]
fn bytes_of(tensor: &Tensor<'_>) -> Vec<u8> {
    match &tensor.data {
        Data::Raw(bytes) => bytes.to_vec(),
        Data::Bytes(bytes) => bytes.clone(),
        Data::Ints(numbers) if tensor.dtype == DataType::Int64 => {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        }
        Data::Ints(numbers) => {
            numbers.iter().flat_map(|&number| i32::try_from(number).expect("an int32").to_le_bytes()).collect()
        }
        Data::Floats(_) | Data::Strings(_) => panic!("not numbers"),
    }
}

fn strings_of<'t>(tensor: &'t Tensor<'_>) -> Vec<&'t [u8]> {
    match &tensor.data {
        Data::Strings(strings) => strings.parts.iter().map(AsRef::as_ref).collect(),
        _ => panic!("no strings"),
    }
}

/// Generates a dtype, and random numbers of that dtype, each as its bits in a u64.
fn numbers() -> impl Strategy<Value = (DataType, Vec<u64>)> {
    (proptest::sample::select(&DTYPES[..]), vec(any::<u64>(), 1..80)).prop_map(|(dtype, mut bits)| {
        for one in &mut bits {
            // The random bits may be a NaN, which equals no float, so the tests compare bits.
            *one &= match dtype {
                DataType::Bool => 1,
                _ => u64::MAX >> (64 - 8 * dtype.size()),
            };
        }
        (dtype, bits)
    })
}

fn little_end(dtype: DataType, bits: &[u64]) -> Vec<u8> {
    let each = bits.iter().flat_map(|one| one.to_le_bytes().into_iter().take(dtype.size()));
    each.collect()
}

proptest! {
    #[test]
    fn packed_values_and_content_come_back((dtype, bits) in numbers()) {
        let mut tensor = ProstTensor::new(dtype, &[bits.len(), 1]);
        let content = little_end(dtype, &bits);
        let with_content = ProstTensor { tensor_content: content.clone(), ..tensor.clone() }.encode_to_vec();
        tensor.add(dtype, &bits);
        let with_values = tensor.encode_to_vec();
        for message in [with_content, with_values] {
            let tensor = read(&message).expect("plain");
            prop_assert_eq!((tensor.dtype, &tensor.dims[..]), (dtype, &[bits.len(), 1][..]));
            prop_assert_eq!(bytes_of(&tensor), &content[..]);
        }
    }

    #[test]
    fn values_come_back_in_any_pieces((dtype, bits) in numbers(), cut in 0..80_usize) {
        let mut message = ProstTensor::new(dtype, &[bits.len()]).encode_to_vec();
        let (packed, single) = bits.split_at(cut.min(bits.len()));
        let field = field_of_values(dtype);
        for half in packed.chunks(packed.len() / 2 + 1) {
            let mut tensor = ProstTensor::default();
            tensor.add(dtype, half);
            message.extend(tensor.encode_to_vec());
        }
        for one in single {
            match dtype {
                DataType::Float32 => write_varint(&mut message, u64::from(field << 3 | 5)),
                DataType::Float64 => write_varint(&mut message, u64::from(field << 3 | 1)),
                _ => {
                    write_varint_field(&mut message, field, *one);
                    continue;
                }
            }
            message.extend(one.to_le_bytes().into_iter().take(dtype.size()));
        }
        prop_assert_eq!(bytes_of(&read(&message).expect("plain")), little_end(dtype, &bits));
    }

    #[test]
    fn the_last_value_stands_for_all_that_follow((dtype, mut bits) in numbers(), more in 1..200_usize) {
        let mut tensor = ProstTensor::new(dtype, &[bits.len() + more]);
        tensor.add(dtype, &bits);
        let message = tensor.encode_to_vec();
        bits.resize(bits.len() + more, bits[bits.len() - 1]);
        prop_assert_eq!(bytes_of(&read(&message).expect("plain")), little_end(dtype, &bits));

        let empty = ProstTensor::new(dtype, &[more]).encode_to_vec();
        prop_assert_eq!(bytes_of(&read(&empty).expect("plain")), vec![0; more * dtype.size()]);
    }

    #[test]
    fn strings_come_back(strings in vec(vec(any::<u8>(), 0..200), 1..20)) {
        let tensor = ProstTensor::new(DataType::String, &[strings.len()]);
        let with_values = ProstTensor { string_val: strings.clone(), ..tensor.clone() }.encode_to_vec();
        let mut content = Vec::new();
        for one in &strings {
            write_varint(&mut content, one.len() as u64);
        }
        content.extend(strings.concat());
        let with_content = ProstTensor { tensor_content: content, ..tensor }.encode_to_vec();
        for message in [with_values, with_content] {
            let tensor = read(&message).expect("plain");
            prop_assert_eq!(strings_of(&tensor), strings.iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_bytes_make_a_panic((dtype, bits) in numbers(), changes in vec((any::<u16>(), any::<u8>()), 0..4)) {
        let mut tensor = ProstTensor::new(dtype, &[bits.len()]);
        tensor.add(dtype, &bits);
        let mut message = tensor.encode_to_vec();
        for (at, byte) in changes {
            let at = usize::from(at) % message.len();
            message[at] = byte;
        }
        if let Ok(tensor) = read(&message) {
            let size = tensor.dims.iter().product::<usize>();
            if let Data::Strings(strings) = &tensor.data {
                prop_assert_eq!(strings.parts.len(), size);
            } else {
                prop_assert_eq!(bytes_of(&tensor).len(), size * tensor.dtype.size());
            }
        }
    }
}

#[test]
fn integers_keep_the_bits_of_their_dtype() {
    let read_one = |dtype, number| {
        let mut message = ProstTensor::new(dtype, &[]).encode_to_vec();
        write_varint_field(&mut message, field_of_values(dtype), number);
        bytes_of(&read(&message).expect("plain"))
    };
    assert_eq!(read_one(DataType::Int32, 1 << 40 | 0xFFFF_FFFE), (-2_i32).to_le_bytes());
    assert_eq!(read_one(DataType::Uint8, 0x1FF), [0xFF]);
    assert_eq!(read_one(DataType::Float16, 0x1_3C00), [0, 0x3C]);
    assert_eq!(read_one(DataType::Uint32, u64::MAX), [0xFF; 4]);
    assert_eq!(read_one(DataType::Bool, 1 << 40), [1]);
}

#[test]
fn a_written_input_reads_back_in_each_dtype() {
    for dtype in (0..64).filter_map(DataType::of_number).filter(|&dtype| dtype != DataType::String) {
        let bytes: Vec<u8> = (0..).map(|at: u8| at % 2).take(2 * dtype.size()).collect();
        let mut message = Vec::new();
        write_input(&mut message, &Tensor { dtype, dims: Dims::from_slice(&[2]), data: Data::Raw(&bytes) });
        assert_eq!(bytes_of(&read(&message).expect("plain")), bytes, "{dtype:?}");
    }
}

#[test]
fn any_byte_but_0_is_true() {
    let content = ProstTensor { tensor_content: vec![0, 2, 255], ..ProstTensor::new(DataType::Bool, &[3]) };
    assert_eq!(bytes_of(&read(&content.encode_to_vec()).expect("plain")), [0, 1, 1]);
}

#[test]
fn shapes_are_bounded() {
    let shaped = |dims: &[i64], unknown_rank| {
        let tensor = ProstTensor {
            dtype: 9,
            tensor_shape: Some(Shape {
                dim: dims.iter().map(|&size| Dim { size, name: String::new() }).collect(),
                unknown_rank,
            }),
            ..ProstTensor::default()
        };
        read(&tensor.encode_to_vec()).map(|tensor| tensor.dims.into_vec())
    };
    assert_eq!(shaped(&[], false), Ok(vec![]));
    assert_eq!(shaped(&[0, 1 << 40], false), Ok(vec![0, 1 << 40]));
    assert_eq!(shaped(&[1; 64], false), Ok(vec![1; 64]));
    for dims in [&[1; 65][..], &[-1], &[0, i64::MAX], &[i64::MAX], &[0, 1 << 40, 1 << 40], &[1 << 21]] {
        assert!(is_fault(shaped(dims, false)), "{dims:?}");
    }
    let Err(Declined::Fault(fault)) = shaped(&[1 << 62, 1 << 62, 3], false) else { panic!("a fault") };
    let text = "has 63802943797675961899382738893456539648 elements, the limit is 1048576.";
    assert!(fault.text.ends_with(text), "{}", fault.text);
    // More repeats than a thread of connections fills in.
    assert_eq!(shaped(&[1 << 17], false), Ok(vec![1 << 17]));
    let repeats = ProstTensor::new(DataType::Int64, &[1 << 17]).encode_to_vec();
    let small = read_tensor("x", &repeats, &mut Allowance::of_request(repeats.len(), Effort::Small));
    assert_eq!(small.map(|_| ()), Err(Declined::TooLarge));
    assert!(is_fault(shaped(&[], true)));
}

#[test]
fn unusual_tensors_are_declined() {
    let plain = ProstTensor { int64_val: vec![1, 2], ..ProstTensor::new(DataType::Int64, &[2]) };
    let cases = [
        ("another field", ProstTensor { int_val: vec![1, 2], int64_val: vec![], ..plain.clone() }),
        ("two fields", ProstTensor { int_val: vec![1], ..plain.clone() }),
        ("content and values", ProstTensor { tensor_content: vec![0; 16], ..plain.clone() }),
    ];
    for (case, tensor) in cases {
        assert_eq!(read(&tensor.encode_to_vec()).map(|_| ()), Err(Declined::Unusual), "{case}");
    }
    let resource = ProstTensor { dtype: 20, ..plain.clone() };
    let Err(Declined::Fault(fault)) = read(&resource.encode_to_vec()) else { panic!("a resource was read") };
    assert!(fault.text.ends_with(": dtype DT_RESOURCE is not supported."), "{}", fault.text);
    let bad = [
        ("no dtype", ProstTensor { dtype: 0, ..plain.clone() }),
        ("a reference", ProstTensor { dtype: 109, ..plain.clone() }),
        ("below 0", ProstTensor { dtype: -1, ..plain.clone() }),
        ("too many values", ProstTensor { int64_val: vec![1, 2, 3], ..plain.clone() }),
        ("short content", ProstTensor { tensor_content: vec![0; 15], int64_val: vec![], ..plain.clone() }),
        ("no shape", ProstTensor { tensor_shape: None, ..plain.clone() }),
    ];
    for (case, tensor) in bad {
        assert!(is_fault(read(&tensor.encode_to_vec())), "{case}");
    }
    let message = plain.encode_to_vec();
    assert!(read(&message).is_ok());
    for (case, more) in [
        ("a second dtype", &[0x08, 9][..]),
        ("a second shape", &[0x12, 0]),
        ("a newer field", &[0x98, 0x06, 1]),
        ("a fixed number", &[0x51, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let longer = [&message, more].concat();
        assert_eq!(read(&longer).map(|_| ()), Err(Declined::Unusual), "{case}");
    }
}
