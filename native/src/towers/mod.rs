//! TensorFlow through its C API: what is left of a predict behind its lookups.
