//! Burn from 0.22 on: modules carry no backend parameter, tensors travel as burn-pack tensors.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use burn::module::Param;
use burn::tensor::{Bool, BoolStore, Bytes, Int, Tensor, TensorData};
use burn_store::burn_pack::{Reader, Tensor as Packed, Writer};
use burn_store::{ApplyResult, ModuleSnapshot, PathFilter, bridge};

use crate::entry::Entry;

pub use burn::tensor::{DType, Device};

pub const BACKEND: &str = "flex";
pub const READS_PACKS: bool = true;
pub const WRITES_PACKS: bool = true;
pub const BOOL: DType = DType::Bool(BoolStore::Native);
pub const DTYPES: &[DType] = &[
    DType::F64,
    DType::F32,
    DType::Flex32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    BOOL,
    DType::Bool(BoolStore::U8),
    DType::Bool(BoolStore::U32),
];

/// Hands the (empty) generic parameters of a zoo module to the macro that declares the modules.
macro_rules! with_backend {
    ($declare:ident) => {
        $declare!({});
    };
}
pub(crate) use with_backend;

pub type FloatParam<const D: usize> = Param<FloatTensor<D>>;
pub type IntParam<const D: usize> = Param<IntTensor<D>>;
pub type BoolParam<const D: usize> = Param<BoolTensor<D>>;

/// A module type on the CPU backend.
macro_rules! cpu {
    ($module:ident) => {
        $module
    };
}
pub(crate) use cpu;

pub type FloatTensor<const D: usize> = Tensor<D>;
pub type IntTensor<const D: usize> = Tensor<D, Int>;
pub type BoolTensor<const D: usize> = Tensor<D, Bool>;

/// Every module of this program.
pub trait AnyModule: burn::module::Module + burn::module::ModuleDisplay + Debug {}
impl<M: burn::module::Module + burn::module::ModuleDisplay + Debug> AnyModule for M {}

pub fn seed(device: &Device) {
    device.seed(42);
}

pub fn float_tensor<const D: usize>(data: TensorData, device: &Device) -> FloatTensor<D> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}

pub fn int_tensor<const D: usize>(data: TensorData, device: &Device) -> IntTensor<D> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}

pub fn bool_tensor<const D: usize>(data: TensorData, device: &Device) -> BoolTensor<D> {
    Tensor::from_data(data, device)
}

pub fn data_bytes(data: TensorData) -> Vec<u8> {
    data.bytes().to_vec()
}

fn packed(entry: Entry) -> Packed {
    let bytes = Bytes::from_bytes_vec(entry.bytes);
    Packed::new(entry.path, entry.dtype, entry.shape, entry.param_id, bytes)
}

fn unpacked(tensor: Packed) -> Result<Entry, String> {
    let (path, dtype, shape, param_id) = (
        tensor.name.clone(),
        tensor.dtype,
        tensor.shape.to_vec(),
        tensor.param_id,
    );
    let data = bridge::into_data(tensor).map_err(|error| format!("{path}: {error}"))?;
    Ok(Entry {
        path,
        dtype,
        shape,
        param_id,
        bytes: data_bytes(data),
    })
}

pub fn collect(module: &impl AnyModule, filter: PathFilter) -> Result<Vec<Entry>, String> {
    let tensors = module.collect(Some(filter), None, false);
    tensors.into_iter().map(unpacked).collect()
}

pub fn apply(module: &mut impl AnyModule, entries: Vec<Entry>) -> ApplyResult {
    let tensors: Vec<Packed> = entries.into_iter().map(packed).collect();
    module.apply(tensors, None, None, false)
}

/// Path and containers of each parameter the source lacks.
pub fn missing(result: &ApplyResult) -> Vec<(String, String)> {
    result.missing.clone()
}

/// The metadata and the tensors by name.
pub type Pack = (Option<BTreeMap<String, String>>, Vec<Entry>);

pub fn read_pack(path: &Path) -> Result<Pack, String> {
    let reader = Reader::from_file_exact(path).map_err(|error| error.to_string())?;
    let metadata = reader.metadata().clone();
    let tensors = reader.into_tensors().map_err(|error| error.to_string())?;
    let entries: Result<Vec<_>, _> = tensors.into_iter().map(unpacked).collect();
    Ok((Some(metadata), entries?))
}

pub fn write_pack(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    entries: Vec<Entry>,
) -> Result<(), String> {
    let mut writer = Writer::new(entries.into_iter().map(packed).collect());
    for (key, value) in metadata {
        writer = writer.with_metadata(key, value);
    }
    writer
        .auto_extension(false)
        .write_to_file_in_place(path)
        .map_err(|error| error.to_string())
}
