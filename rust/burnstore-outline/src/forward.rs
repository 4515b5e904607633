//! What a model computes: the tensors that went into its forward pass and came out of it, and their JSON.

use std::fmt::Write;

use crate::record::quoted;

/// The most bytes that the tensors of a forward pass may have in all: they are stored in the file's metadata.
pub const MOST_BYTES: usize = 48 << 20;

/// A tensor as it is stored with an outline; see [`Recordable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Recorded {
    pub(crate) fn floats(shape: &[usize], values: impl Iterator<Item = f32>) -> Self {
        Self::new("F32", shape, values.flat_map(f32::to_le_bytes).collect())
    }

    pub(crate) fn ints(shape: &[usize], values: impl Iterator<Item = i64>) -> Self {
        Self::new("I64", shape, values.flat_map(i64::to_le_bytes).collect())
    }

    pub(crate) fn bools(shape: &[usize], values: impl Iterator<Item = bool>) -> Self {
        Self::new("Bool", shape, values.map(u8::from).collect())
    }

    fn new(dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Self {
        let shape = shape.to_vec();
        Self {
            dtype,
            shape,
            bytes,
        }
    }
}

/// A tensor that [`Forward`] can record: Burn's tensors of floats, integers and bools.
pub trait Recordable {
    /// Return the tensor's shape and values.
    fn recorded(&self) -> Recorded;
}

/// The inputs and outputs of one forward pass, to be saved with the model by `record_forward`.
///
/// Give inputs the names of the parameters of PyTorch's `forward`, outputs the names of its outputs, and intermediate
/// outputs the paths of the Burn modules that computed them (`blocks.0.attention`). Record an inference: dropout and
/// batch statistics must be off.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    state: u64,
    inputs: Vec<(String, Recorded)>,
    outputs: Vec<(String, Recorded)>,
    inner: Vec<(String, Recorded)>,
}

impl Forward {
    /// Return an empty record; [`floats`](Self::floats) and [`ints`](Self::ints) follow the seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            state: seed,
            ..Self::default()
        }
    }

    /// Return random numbers for a float input, evenly between -1 and 1; the same for the same seed on every machine.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| 2.0 * self.unit() - 1.0).collect()
    }

    /// Return random integers for an input of tokens or classes, from `low` to `high - 1`.
    pub fn ints(&mut self, count: usize, low: i64, high: i64) -> Vec<i64> {
        let extent = (high - low).max(1) as f32;
        (0..count)
            .map(|_| (low + (self.unit() * extent) as i64).min(high - 1))
            .collect()
    }

    /// Record an input; inputs are passed to PyTorch by name, or in this order where it has other names.
    pub fn input(&mut self, name: &str, tensor: &impl Recordable) -> &mut Self {
        self.inputs.push((name.to_owned(), tensor.recorded()));
        self
    }

    /// Record an output of the model.
    pub fn output(&mut self, name: &str, tensor: &impl Recordable) -> &mut Self {
        self.outputs.push((name.to_owned(), tensor.recorded()));
        self
    }

    /// Record the output of the module at `path`, in the order of the forward pass: it shows where outputs first differ.
    pub fn inner(&mut self, path: &str, tensor: &impl Recordable) -> &mut Self {
        self.inner.push((path.to_owned(), tensor.recorded()));
        self
    }

    /// Return a number from 0 to 1, by the generator splitmix64.
    pub(crate) fn unit(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Return the record as JSON, or the reason why it cannot be stored.
    pub(crate) fn json(&self) -> Result<String, String> {
        if self.inputs.is_empty() || self.outputs.is_empty() {
            return Err("the forward pass has no input, or no output".to_owned());
        }
        let parts = [&self.inputs, &self.outputs, &self.inner];
        let total: usize = parts
            .iter()
            .flat_map(|part| part.iter())
            .map(|each| each.1.bytes.len())
            .sum();
        if total > MOST_BYTES {
            return Err(format!(
                "the tensors of the forward pass have {total} bytes, more than {MOST_BYTES}; record a smaller batch"
            ));
        }
        let [inputs, outputs, inner] = parts.map(|part| {
            let members: Vec<_> = part
                .iter()
                .map(|(name, tensor)| member(name, tensor))
                .collect();
            members.join(",")
        });
        Ok(format!(
            r#"{{"format":{},"inputs":[{inputs}],"outputs":[{outputs}],"inner":[{inner}]}}"#,
            crate::FORMAT
        ))
    }
}

fn member(name: &str, tensor: &Recorded) -> String {
    let shape: Vec<_> = tensor.shape.iter().map(ToString::to_string).collect();
    let mut out = String::new();
    write!(
        out,
        r#"{{"name":{},"dtype":"{}","shape":[{}],"data":"{}"}}"#,
        quoted(name),
        tensor.dtype,
        shape.join(","),
        base64(&tensor.bytes)
    )
    .expect("a String takes everything");
    out
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                out.push(char::from(
                    DIGITS[(group >> (18 - 6 * place)) as usize & 63],
                ));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Forward, Recorded, base64};

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let texts = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in texts {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }

    #[test]
    fn random_inputs_follow_the_seed_and_their_range() {
        let numbers = Forward::seeded(7).ints(1000, 3, 6);
        assert_eq!(numbers, Forward::seeded(7).ints(1000, 3, 6));
        assert_ne!(numbers, Forward::seeded(8).ints(1000, 3, 6));
        assert!(
            (3..6).all(|wanted| numbers.contains(&wanted))
                && numbers.iter().all(|each| (3..6).contains(each))
        );
        assert!(
            Forward::seeded(1)
                .floats(100)
                .iter()
                .all(|each| (-1.0..=1.0).contains(each))
        );
    }

    #[test]
    fn a_record_without_an_output_is_refused() {
        let mut forward = Forward::seeded(1);
        forward
            .inputs
            .push(("x".to_owned(), Recorded::floats(&[1], [1.0f32].into_iter())));
        assert!(forward.json().is_err());
        forward.outputs.push((
            "y".to_owned(),
            Recorded::bools(&[2], [true, false].into_iter()),
        ));
        assert!(
            forward
                .json()
                .unwrap()
                .contains(r#""outputs":[{"name":"y","dtype":"Bool","shape":[2],"data":"AQA="}]"#)
        );
    }
}
