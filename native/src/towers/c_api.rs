//! Loads TensorFlow's shared library from its pip wheel, and finds the C functions that sessions need.
//!
//! The library is loaded by its full path, so that a process that also imports TensorFlow in Python has only one copy
//! of it.
//!
//! Source: `tensorflow/c/{c_api,tf_tensor,tf_status,tf_tstring}.h` (2.21).
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// `TF_Graph`.
#[repr(C)]
pub struct Graph {
    _opaque: [u8; 0],
}

/// `TF_Session`.
#[repr(C)]
pub struct RawSession {
    _opaque: [u8; 0],
}

/// `TF_Operation`.
#[repr(C)]
pub struct Operation {
    _opaque: [u8; 0],
}

/// `TF_Tensor`.
#[repr(C)]
pub struct RawTensor {
    _opaque: [u8; 0],
}

/// `TF_Status`.
#[repr(C)]
pub struct Status {
    _opaque: [u8; 0],
}

/// `TF_Buffer`, bytes in memory that only functions of TensorFlow's C API create and free.
#[repr(C)]
pub struct Buffer {
    pub data: *const c_void,
    pub length: usize,
    _deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TF_ImportGraphDefOptions`.
#[repr(C)]
pub struct ImportOptions {
    _opaque: [u8; 0],
}

/// `TF_SessionOptions`.
#[repr(C)]
pub struct SessionOptions {
    _opaque: [u8; 0],
}

/// `TF_Output`: names one tensor of a graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Output {
    pub operation: *mut Operation,
    pub index: c_int,
}

/// `TF_TString`: an element of a string tensor, 24 bytes.
#[repr(C, align(8))]
pub struct TString {
    _bytes: [u8; 24],
}

/// Frees memory that was passed to `TF_NewTensor`. The arguments are its address, its size in bytes, and the pointer
/// that was passed beside the deallocator.
pub type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

/// `TF_OK`, the status code of success.
pub const OK: c_int = 0;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Pointers to the functions of TensorFlow's C API, named without the prefix `TF_`.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Api {
                    // SAFETY: the struct's field has the function type with which TensorFlow's headers declare the C
                    // function of this name.
                    $($name: unsafe { *library.get($symbol)? },)*
                })
            }
        }
    };
}

functions! {
    version = b"TF_Version\0": fn() -> *const c_char;
    new_status = b"TF_NewStatus\0": fn() -> *mut Status;
    delete_status = b"TF_DeleteStatus\0": fn(*mut Status);
    get_code = b"TF_GetCode\0": fn(*const Status) -> c_int;
    message = b"TF_Message\0": fn(*const Status) -> *const c_char;
    new_buffer = b"TF_NewBuffer\0": fn() -> *mut Buffer;
    new_buffer_from_string = b"TF_NewBufferFromString\0": fn(*const c_void, usize) -> *mut Buffer;
    delete_buffer = b"TF_DeleteBuffer\0": fn(*mut Buffer);
    new_graph = b"TF_NewGraph\0": fn() -> *mut Graph;
    delete_graph = b"TF_DeleteGraph\0": fn(*mut Graph);
    new_import_options = b"TF_NewImportGraphDefOptions\0": fn() -> *mut ImportOptions;
    delete_import_options = b"TF_DeleteImportGraphDefOptions\0": fn(*mut ImportOptions);
    import_graph_def = b"TF_GraphImportGraphDef\0": fn(*mut Graph, *const Buffer, *const ImportOptions, *mut Status);
    operation_by_name = b"TF_GraphOperationByName\0": fn(*mut Graph, *const c_char) -> *mut Operation;
    op_definition = b"TF_GraphGetOpDef\0": fn(*mut Graph, *const c_char, *mut Buffer, *mut Status);
    tensor_num_dims = b"TF_GraphGetTensorNumDims\0": fn(*mut Graph, Output, *mut Status) -> c_int;
    tensor_shape = b"TF_GraphGetTensorShape\0": fn(*mut Graph, Output, *mut i64, c_int, *mut Status);
    num_outputs = b"TF_OperationNumOutputs\0": fn(*mut Operation) -> c_int;
    new_session_options = b"TF_NewSessionOptions\0": fn() -> *mut SessionOptions;
    delete_session_options = b"TF_DeleteSessionOptions\0": fn(*mut SessionOptions);
    set_config = b"TF_SetConfig\0": fn(*mut SessionOptions, *const c_void, usize, *mut Status);
    new_session = b"TF_NewSession\0": fn(*mut Graph, *const SessionOptions, *mut Status) -> *mut RawSession;
    close_session = b"TF_CloseSession\0": fn(*mut RawSession, *mut Status);
    delete_session = b"TF_DeleteSession\0": fn(*mut RawSession, *mut Status);
    session_run = b"TF_SessionRun\0": fn(
        *mut RawSession, *const Buffer,
        *const Output, *const *mut RawTensor, c_int,
        *const Output, *mut *mut RawTensor, c_int,
        *const *const Operation, c_int,
        *mut Buffer, *mut Status
    );
    new_tensor = b"TF_NewTensor\0": fn(
        c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void
    ) -> *mut RawTensor;
    delete_tensor = b"TF_DeleteTensor\0": fn(*mut RawTensor);
    tensor_type = b"TF_TensorType\0": fn(*const RawTensor) -> c_int;
    num_dims = b"TF_NumDims\0": fn(*const RawTensor) -> c_int;
    dim = b"TF_Dim\0": fn(*const RawTensor, c_int) -> i64;
    tensor_byte_size = b"TF_TensorByteSize\0": fn(*const RawTensor) -> usize;
    tensor_data = b"TF_TensorData\0": fn(*const RawTensor) -> *mut c_void;
    string_init = b"TF_StringInit\0": fn(*mut TString);
    string_copy = b"TF_StringCopy\0": fn(*mut TString, *const c_char, usize);
    string_data = b"TF_StringGetDataPointer\0": fn(*const TString) -> *const c_char;
    string_size = b"TF_StringGetSize\0": fn(*const TString) -> usize;
    string_dealloc = b"TF_StringDealloc\0": fn(*mut TString);
}

/// The path and the functions of the loaded TensorFlow library.
static OPEN: Mutex<Option<(PathBuf, &'static Api)>> = Mutex::new(None);

impl Api {
    /// Loads TensorFlow's library at this path and returns its functions. The library stays loaded until the process
    /// ends.
    ///
    /// # Errors
    /// A sentence: the library can not be loaded or lacks a function, or another library is loaded already.
    pub fn open(path: &Path) -> Result<&'static Api, String> {
        let mut open = OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((opened, api)) = &*open {
            if opened == path {
                return Ok(api);
            }
            return Err(format!("TensorFlow is open already, from {}", opened.display()));
        }
        // SAFETY: loading the library runs TensorFlow's static initialisers, which only register kernels and may run at
        // any time.
        let library =
            unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
        let api: &'static Api = Box::leak(Box::new(Api::find(&library).map_err(|error| error.to_string())?));
        // TensorFlow's threads never end, so its shared library must never be unloaded.
        std::mem::forget(library);
        *open = Some((path.to_owned(), api));
        Ok(api)
    }
}
