//! Deterministic tensor values: every tensor's bytes follow from its path, so no file has to carry an oracle.

use burn::tensor::DType;
use half::{bf16, f16};

/// FNV-1a over the path, moved by the salt: 0 for `gen`, 1 for the values a model holds before a `load`.
pub fn seed_of(path: &str, salt: u64) -> u64 {
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.wrapping_add(salt)
}

/// The SplitMix64 sequence of a seed.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A multiple of 2^-23 in [-1, 1): exact in f32 and f64.
    fn unit(&mut self) -> f64 {
        (self.next() >> 40) as f64 / 8_388_608.0 - 1.0
    }
}

/// Little-endian bytes of `count` elements; integers take the low bytes of a draw, booleans its lowest bit.
pub fn bytes_of(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut draw = SplitMix(seed);
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        match dtype {
            DType::F64 => bytes.extend(draw.unit().to_le_bytes()),
            DType::F32 | DType::Flex32 => bytes.extend((draw.unit() as f32).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(draw.unit()).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(draw.unit()).to_le_bytes()),
            DType::QFloat(_) => panic!("a quantized tensor needs its bytes given as hex"),
            _ if dtype.is_bool() => bytes.extend(&(draw.next() & 1).to_le_bytes()[..dtype.size()]),
            _ => bytes.extend(&draw.next().to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}

/// The F32 bytes of one parameter; a running variance lies in [0.5, 1) so that a forward pass stays finite.
pub fn parameter_bytes(path: &str, count: usize, salt: u64) -> Vec<u8> {
    let bytes = bytes_of(DType::F32, count, seed_of(path, salt));
    if !path.ends_with("running_var") {
        return bytes;
    }
    bytes
        .chunks_exact(4)
        .flat_map(|four| (f32::from_le_bytes(four.try_into().unwrap()) * 0.25 + 0.75).to_le_bytes())
        .collect()
}
