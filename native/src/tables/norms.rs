//! Scales vectors down to a largest norm, as TensorFlow's lookups do with `max_norm`.
//!
//! Source: `clip_by_norm` of TensorFlow 2.21's python/ops/clip_ops.py, which `_clip` of python/ops/embedding_ops.py
//! calls. Its sum of squares is that of `InnerMostDimReducer` in Eigen's TensorReduction.h, with the packets of eight
//! float32 of TensorFlow's wheels for x86-64, and `predux<Packet8f>` of Eigen's arch/AVX/PacketMath.h.

use crate::denormals::FlushDenormals;

/// The number of float32 in one of Eigen's packets.
const PACKET: usize = 8;
/// A sum of more numbers is split in two parts, which are summed apart (`LeafSize` of Eigen, in packets).
const LEAF: usize = 1024 * PACKET;

/// Scales each vector of `dim` numbers whose Euclidean norm is larger than `max_norm` down to this norm.
///
/// Every vector is multiplied by `max_norm` and divided by the larger of `max_norm` and its norm, so numbers of a short
/// vector may change in their last bit. Denormal numbers become zeros. A vector with a NaN becomes all NaN, and of one
/// with an infinity the finite numbers become zeros, the others NaN.
pub fn bound(vectors: &mut [f32], dim: usize, max_norm: f32) {
    if dim == 0 {
        return;
    }
    // TensorFlow's threads flush, see the module.
    let _flushes = FlushDenormals::new();
    let mut squares = vec![0.0; dim];
    for vector in vectors.chunks_exact_mut(dim) {
        for (square, &number) in squares.iter_mut().zip(&*vector) {
            *square = number * number;
        }
        let norm = sum(&squares, 0).sqrt();
        // Unlike f32::max, the comparison keeps a norm of NaN.
        let divisor = if norm < max_norm { max_norm } else { norm };
        for number in vector {
            *number = *number * max_norm / divisor;
        }
    }
}

/// Adds `numbers` in Eigen's order; `first` is the position of the first of them in the whole vector.
fn sum(numbers: &[f32], first: usize) -> f32 {
    if numbers.len() > LEAF {
        let split = (first + numbers.len().div_ceil(2)).div_ceil(PACKET) * PACKET - first;
        let (left, right) = numbers.split_at(split.min(numbers.len()));
        return (0.0 + sum(left, first)) + sum(right, first + left.len());
    }
    let (packets, rest) = numbers.as_chunks::<PACKET>();
    let (fours, others) = packets.as_chunks::<4>();
    let mut sums = [[0.0; PACKET]; 4];
    for four in fours {
        for (sum, packet) in sums.iter_mut().zip(four) {
            add(sum, packet);
        }
    }
    let [mut all, more @ ..] = sums;
    for packet in more.iter().chain(others) {
        add(&mut all, packet);
    }
    let of_rest = rest.iter().fold(0.0, |sum, number| sum + number);
    let halves: [f32; 4] = std::array::from_fn(|lane| all[lane] + all[lane + 4]);
    of_rest + ((halves[0] + halves[2]) + (halves[1] + halves[3]))
}

fn add(sum: &mut [f32; PACKET], packet: &[f32; PACKET]) {
    for (sum, number) in sum.iter_mut().zip(packet) {
        *sum += number;
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::bound;

    #[test]
    fn only_longer_vectors_are_shortened() {
        let mut vectors = [3.0, 4.0, 0.25, 0.5, -6.0, 8.0];
        bound(&mut vectors, 2, 5.0);
        let expected = [3.0_f32, 4.0, 0.25, 0.5, -3.0, 4.0];
        assert_eq!(vectors.map(f32::to_bits), expected.map(f32::to_bits));
    }

    #[test]
    fn numbers_that_are_not_finite_and_denormal_numbers_are_tensorflows() {
        let tiny = f32::from_bits(1 << 20);
        let mut vectors = [f32::NAN, 1.0, f32::INFINITY, 1.0, tiny, -0.0, 0.0, 0.0];
        bound(&mut vectors, 2, 1.0);
        assert!(vectors[..3].iter().all(|number| number.is_nan()));
        let bits = vectors[3..].iter().map(|number| number.to_bits());
        assert_eq!(bits.collect::<Vec<_>>(), [0, 0, 1 << 31, 0, 0]);
        bound(&mut [], 0, 1.0);
    }
}
