//! The quantization schemes of this version that its CPU backend can make and store.

use burn::module::Param;
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, TensorData};
use burn_store::{BurnpackStore, ModuleSnapshot};

use crate::api::{self, Device, FloatTensor};
use crate::entry::{Entry, sha256};
use crate::zoo::Site;
use crate::{panics, values};

const VALUES: &[QuantValue] = &[
    QuantValue::Q8F,
    QuantValue::Q8S,
    QuantValue::Q4F,
    QuantValue::Q4S,
    QuantValue::Q2F,
    QuantValue::Q2S,
    // The float codes of the host backends mean nothing before 0.23.
    #[cfg(feature = "since_0_23")]
    QuantValue::E4M3,
    #[cfg(feature = "since_0_23")]
    QuantValue::E5M2,
    #[cfg(feature = "since_0_23")]
    QuantValue::E2M1,
];

#[cfg(feature = "since_0_22")]
fn levels() -> Vec<QuantScheme> {
    use burn::tensor::quantization::ScaleDtype::{BF16, F16, F32, UE4M3, UE8M0};
    let scheme = QuantScheme::default();
    let mut levels = vec![scheme];
    for dtype in [F32, F16, BF16, UE8M0, UE4M3] {
        levels.extend([
            scheme.per_tensor(dtype),
            scheme.per_block([4], dtype),
            scheme.per_block([16], dtype),
            scheme.per_block([2, 16], dtype),
            scheme.per_block([16], dtype).per_tensor(F32),
        ]);
    }
    levels
}

#[cfg(not(feature = "since_0_22"))]
fn levels() -> Vec<QuantScheme> {
    use burn::tensor::quantization::QuantLevel;
    use burn::tensor::quantization::QuantParam::{BF16, F16, F32, UE4M3, UE8M0};
    let scheme = QuantScheme::default();
    let mut levels = Vec::new();
    for param in [F32, F16, BF16, UE8M0, UE4M3] {
        let scheme = scheme.with_param(param);
        levels.extend([
            scheme.with_level(QuantLevel::Tensor),
            scheme.with_level(QuantLevel::block([4])),
            scheme.with_level(QuantLevel::block([16])),
            scheme.with_level(QuantLevel::block([2, 16])),
        ]);
    }
    levels
}

#[cfg(feature = "since_0_20")]
fn stores() -> Vec<QuantStore> {
    vec![
        QuantStore::Native,
        QuantStore::PackedU32(0),
        QuantStore::PackedU32(1),
        QuantStore::PackedNative(0),
        QuantStore::PackedNative(1),
    ]
}

#[cfg(not(feature = "since_0_20"))]
fn stores() -> Vec<QuantStore> {
    vec![QuantStore::Native, QuantStore::U32]
}

/// One parameter for every value kind × level × scale type × store that can be quantized and written.
///
/// A backend may keep another store than the one asked for, so equal results are kept once.
pub fn parameters(at: &Site, field: &str, shape: [usize; 2]) -> Vec<Param<FloatTensor<2>>> {
    let (mut parameters, mut seen) = (Vec::new(), Vec::new());
    for &value in VALUES {
        for level in levels() {
            for store in stores() {
                let scheme = level.with_value(value).with_store(store);
                let path = format!("{field}.{}", parameters.len());
                let Ok(tensor) = panics::caught(|| quantized(at, &path, shape, &scheme)) else {
                    continue;
                };
                let dtype = tensor.dtype();
                let parameter = Param::from_tensor(tensor);
                if !seen.contains(&dtype) && writable(&parameter) {
                    seen.push(dtype);
                    parameters.push(parameter);
                }
            }
        }
    }
    parameters
}

fn quantized(at: &Site, path: &str, shape: [usize; 2], scheme: &QuantScheme) -> FloatTensor<2> {
    let bytes = values::parameter_bytes(path, shape.iter().product(), at.salt);
    let data = TensorData::from_bytes_vec(bytes, shape, DType::F32);
    api::float_tensor(data, at.device).quantize_dynamic(scheme)
}

/// Whether Burn can write the parameter: some versions make tensors that their own writer refuses.
fn writable(parameter: &Param<FloatTensor<2>>) -> bool {
    let module = vec![parameter.clone()];
    let written = panics::caught(|| {
        let mut store = BurnpackStore::from_bytes(None);
        module.save_into(&mut store).is_ok() && store.get_bytes().is_ok()
    });
    written == Ok(true)
}

/// The digest of the values a quantized tensor stands for, or none where the backend cannot say.
pub fn dequantized_sha256(entry: &Entry) -> Option<String> {
    let data = TensorData::from_bytes_vec(entry.bytes.clone(), entry.shape.clone(), entry.dtype);
    let values = panics::caught(|| match entry.shape.len() {
        1 => dequantized::<1>(data),
        2 => dequantized::<2>(data),
        3 => dequantized::<3>(data),
        rank => panic!("rank {rank}"),
    });
    values.ok().map(|bytes| sha256(&bytes))
}

fn dequantized<const D: usize>(data: TensorData) -> Vec<u8> {
    let tensor: FloatTensor<D> = api::float_tensor(data, &Device::default());
    api::data_bytes(tensor.dequantize().into_data())
}
