//! Says whether there is memory for a large buffer: where code of the core gets none, the process ends.

/// Size in bytes from which on a buffer may be a notable part of the memory.
const LARGE: usize = 32 << 20;

/// Says whether the process may take so much memory, and half as much again for other code. Smaller buffers than
/// [`LARGE`] always have room.
#[must_use]
pub fn has_room(num_bytes: usize) -> bool {
    if num_bytes < LARGE {
        return true;
    }
    let mut probe = Vec::<u8>::new();
    let is_free = probe.try_reserve_exact(num_bytes.saturating_add(num_bytes / 2)).is_ok();
    // The compiler may leave out an allocation that nothing uses, and take it for successful.
    std::hint::black_box(&probe);
    is_free
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn nothing_as_large_as_the_address_space_has_room() {
        assert!(has_room(0) && has_room(LARGE - 1) && has_room(LARGE));
        assert!(!has_room(1 << 60) && !has_room(usize::MAX));
    }
}
