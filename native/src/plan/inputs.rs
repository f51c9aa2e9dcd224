//! The input tensors of one request, as a wire format's handler (form) parsed them from the request's bytes.

use smallvec::SmallVec;

use super::sparse::Sparse;
use crate::tables::halves::Half;

/// The shape of a tensor: its sizes, the outermost first.
pub type Dims = SmallVec<[usize; 3]>;

/// Dtype of a tensor; the discriminants are the enum values of `tensorflow/core/framework/types.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DataType {
    Float32 = 1,
    Float64 = 2,
    Int32 = 3,
    Uint8 = 4,
    Int16 = 5,
    Int8 = 6,
    String = 7,
    Complex64 = 8,
    Int64 = 9,
    Bool = 10,
    Bfloat16 = 14,
    Uint16 = 17,
    Complex128 = 18,
    Float16 = 19,
    Uint32 = 22,
    Uint64 = 23,
}

impl From<Half> for DataType {
    fn from(half: Half) -> Self {
        match half {
            Half::Float16 => DataType::Float16,
            Half::Bfloat16 => DataType::Bfloat16,
        }
    }
}

impl DataType {
    /// Returns how many bytes one number of this dtype takes; 0 for strings.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DataType::String => 0,
            DataType::Uint8 | DataType::Int8 | DataType::Bool => 1,
            DataType::Int16 | DataType::Bfloat16 | DataType::Uint16 | DataType::Float16 => 2,
            DataType::Float32 | DataType::Int32 | DataType::Uint32 => 4,
            DataType::Float64 | DataType::Int64 | DataType::Uint64 | DataType::Complex64 => 8,
            DataType::Complex128 => 16,
        }
    }

    /// Says whether the dtype's numbers are pairs of floats, for which JSON and the Open Inference Protocol have no form.
    #[must_use]
    pub fn is_complex(self) -> bool {
        matches!(self, DataType::Complex64 | DataType::Complex128)
    }

    /// Returns the dtype's name, as `TensorSpec.dtype` of service/types.py has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DataType::Float32 => "float32",
            DataType::Float64 => "float64",
            DataType::Int32 => "int32",
            DataType::Uint8 => "uint8",
            DataType::Int16 => "int16",
            DataType::Int8 => "int8",
            DataType::String => "string",
            DataType::Complex64 => "complex64",
            DataType::Complex128 => "complex128",
            DataType::Int64 => "int64",
            DataType::Bool => "bool",
            DataType::Bfloat16 => "bfloat16",
            DataType::Uint16 => "uint16",
            DataType::Float16 => "float16",
            DataType::Uint32 => "uint32",
            DataType::Uint64 => "uint64",
        }
    }

    /// Returns the name that TensorFlow's error texts have for the dtype.
    #[must_use]
    pub fn graph_name(self) -> &'static str {
        match self {
            DataType::Float16 => "half",
            DataType::Float32 => "float",
            DataType::Float64 => "double",
            other => other.name(),
        }
    }

    /// Returns the smallest and the largest number of an integer dtype; None for any other dtype.
    #[must_use]
    pub fn integer_range(self) -> Option<(i128, i128)> {
        Some(match self {
            DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            DataType::Int64 => (i64::MIN.into(), i64::MAX.into()),
            DataType::Uint8 => (0, u8::MAX.into()),
            DataType::Uint16 => (0, u16::MAX.into()),
            DataType::Uint32 => (0, u32::MAX.into()),
            DataType::Uint64 => (0, u64::MAX.into()),
            _ => return None,
        })
    }

    /// Returns the dtype with this enum value in `types.proto`; None for a dtype that the core does not support.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => DataType::Float32,
            2 => DataType::Float64,
            3 => DataType::Int32,
            4 => DataType::Uint8,
            5 => DataType::Int16,
            6 => DataType::Int8,
            7 => DataType::String,
            8 => DataType::Complex64,
            9 => DataType::Int64,
            10 => DataType::Bool,
            14 => DataType::Bfloat16,
            17 => DataType::Uint16,
            18 => DataType::Complex128,
            19 => DataType::Float16,
            22 => DataType::Uint32,
            23 => DataType::Uint64,
            _ => return None,
        })
    }
}

/// Byte strings of a tensor, in row-major order.
#[derive(Clone, Debug, Default)]
pub struct Strings<'a> {
    pub parts: Vec<std::borrow::Cow<'a, [u8]>>,
}

/// The elements of a tensor of a request. The wire format's handler (form) checks that there are as many as the shape
/// says.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Little-endian numbers of the tensor's dtype, end to end, borrowed from the request's bytes.
    Raw(&'a [u8]),
    /// Decoded numbers of an int64 or int32 tensor; each number fits the tensor's dtype.
    Ints(Vec<i64>),
    /// Decoded numbers of a float32 tensor.
    Floats(Vec<f32>),
    /// Little-endian numbers of the tensor's dtype, end to end, in memory that the tensor owns.
    Bytes(Vec<u8>),
    /// Elements of a string tensor, borrowed from the request's bytes or owned.
    Strings(Strings<'a>),
}

/// One input tensor of a request: dtype, shape and elements.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    pub dtype: DataType,
    pub dims: Dims,
    pub data: Data<'a>,
}

impl Tensor<'_> {
    /// Returns a tensor without elements; one of the sizes in `dims` is 0.
    pub(super) fn empty(dtype: DataType, dims: Dims) -> Self {
        let data = if dtype == DataType::String { Data::Strings(Strings::default()) } else { Data::Raw(&[]) };
        Tensor { dtype, dims, data }
    }
}

/// The tensors of a request, by the indexes of the signature's inputs (see `Signature::input`).
pub type Inputs<'a> = Sparse<Tensor<'a>>;

/// The number of an input's keys that a vocabulary lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownKeyCount {
    pub(super) input: usize,
    pub(super) vocabulary: usize,
    pub(super) count: usize,
}

/// The inputs whose keys a vocabulary lacks; nearly always empty, and then without memory of its own.
pub(super) type UnknownKeyCounts = Vec<UnknownKeyCount>;
