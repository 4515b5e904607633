//! Burn up to 0.21: modules are generic over their backend, tensors travel as snapshots.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use burn::backend::NdArray;
use burn::module::{Param, ParamId};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use burn_store::{ApplyResult, ModuleSnapshot, PathFilter, TensorSnapshot};

use crate::entry::Entry;

pub use burn::tensor::DType;
pub use burn::tensor::backend::Backend;

/// The CPU backend.
pub type Cpu = NdArray;
pub type Device = burn::backend::ndarray::NdArrayDevice;

pub const BACKEND: &str = "ndarray";
pub const READS_PACKS: bool = cfg!(feature = "since_0_20");
pub const WRITES_PACKS: bool = cfg!(feature = "since_0_20");
#[cfg(feature = "since_0_21")]
pub const BOOL: DType = DType::Bool(burn::tensor::BoolStore::Native);
#[cfg(not(feature = "since_0_21"))]
pub const BOOL: DType = DType::Bool;
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
    #[cfg(feature = "since_0_21")]
    DType::Bool(burn::tensor::BoolStore::U8),
    #[cfg(feature = "since_0_21")]
    DType::Bool(burn::tensor::BoolStore::U32),
];

/// Hands the generic parameter of a zoo module to the macro that declares the modules.
macro_rules! with_backend {
    ($declare:ident) => {
        $declare!({B: Backend} B);
    };
}
pub(crate) use with_backend;

/// A module type on the CPU backend.
macro_rules! cpu {
    ($module:ident) => { $module<crate::api::Cpu> };
}
pub(crate) use cpu;

pub type FloatParam<B, const D: usize> = Param<Tensor<B, D>>;
pub type IntParam<B, const D: usize> = Param<Tensor<B, D, Int>>;
pub type BoolParam<B, const D: usize> = Param<Tensor<B, D, Bool>>;
pub type FloatTensor<const D: usize> = Tensor<Cpu, D>;
pub type IntTensor<const D: usize> = Tensor<Cpu, D, Int>;
pub type BoolTensor<const D: usize> = Tensor<Cpu, D, Bool>;

/// Every module of this program.
pub trait AnyModule: burn::module::Module<Cpu> + burn::module::ModuleDisplay + Debug {}
impl<M: burn::module::Module<Cpu> + burn::module::ModuleDisplay + Debug> AnyModule for M {}

pub fn seed(device: &Device) {
    Cpu::seed(device, 42);
}

#[cfg(feature = "since_0_21")]
pub fn float_tensor<const D: usize>(data: TensorData, device: &Device) -> FloatTensor<D> {
    let dtype = data.dtype;
    Tensor::from_data(data, (device, dtype))
}

#[cfg(feature = "since_0_21")]
pub fn int_tensor<const D: usize>(data: TensorData, device: &Device) -> IntTensor<D> {
    let dtype = data.dtype;
    Tensor::from_data(data, (device, dtype))
}

#[cfg(not(feature = "since_0_21"))]
pub fn float_tensor<const D: usize>(data: TensorData, device: &Device) -> FloatTensor<D> {
    let dtype = data.dtype;
    Tensor::from_data_dtype(data, device, dtype)
}

/// Made below the public constructor, which refuses unsigned integers.
#[cfg(not(feature = "since_0_21"))]
pub fn int_tensor<const D: usize>(data: TensorData, device: &Device) -> IntTensor<D> {
    use burn::tensor::ops::IntTensorOps;
    Tensor::from_primitive(Cpu::int_from_data(data, device))
}

pub fn bool_tensor<const D: usize>(data: TensorData, device: &Device) -> BoolTensor<D> {
    Tensor::from_data(data, device)
}

pub fn data_bytes(data: TensorData) -> Vec<u8> {
    data.bytes.to_vec()
}

fn snapshot(entry: Entry) -> TensorSnapshot {
    let path = entry.path.split('.').map(str::to_owned).collect();
    let id = entry.param_id.map(ParamId::from);
    let data = TensorData::from_bytes_vec(entry.bytes, entry.shape, entry.dtype);
    let mut snapshot = TensorSnapshot::from_data(data, path, Vec::new(), ParamId::new());
    snapshot.tensor_id = id;
    snapshot
}

fn entry(snapshot: &TensorSnapshot) -> Result<Entry, String> {
    let path = snapshot.full_path();
    let data = snapshot
        .to_data()
        .map_err(|error| format!("{path}: {error:?}"))?;
    Ok(Entry {
        path,
        dtype: snapshot.dtype,
        shape: snapshot.shape.to_vec(),
        param_id: snapshot.tensor_id.map(|id| id.val()),
        bytes: data_bytes(data),
    })
}

pub fn collect(module: &impl AnyModule, filter: PathFilter) -> Result<Vec<Entry>, String> {
    #[cfg(feature = "since_0_20")]
    let snapshots = module.collect(Some(filter), None, false);
    #[cfg(not(feature = "since_0_20"))]
    let snapshots = module.collect(Some(filter), None);
    snapshots.iter().map(entry).collect()
}

pub fn apply(module: &mut impl AnyModule, entries: Vec<Entry>) -> ApplyResult {
    let snapshots = entries.into_iter().map(snapshot).collect();
    #[cfg(feature = "since_0_20")]
    return module.apply(snapshots, None, None, false);
    #[cfg(not(feature = "since_0_20"))]
    return module.apply(snapshots, None, None);
}

/// Path and containers of each parameter the source lacks; 0.19 does not tell the containers.
pub fn missing(result: &ApplyResult) -> Vec<(String, String)> {
    #[cfg(feature = "since_0_20")]
    return result.missing.clone();
    #[cfg(not(feature = "since_0_20"))]
    return result
        .missing
        .iter()
        .map(|path| (path.clone(), String::new()))
        .collect();
}

/// The metadata, which these versions keep to themselves, and the tensors by name.
pub type Pack = (Option<BTreeMap<String, String>>, Vec<Entry>);

#[cfg(feature = "since_0_20")]
pub fn read_pack(path: &Path) -> Result<Pack, String> {
    use burn_store::ModuleStore;
    let mut store = burn_store::BurnpackStore::from_file(path).auto_extension(false);
    let snapshots = store
        .get_all_snapshots()
        .map_err(|error| error.to_string())?;
    let entries: Result<Vec<_>, _> = snapshots.values().map(entry).collect();
    Ok((None, entries?))
}

#[cfg(feature = "since_0_20")]
pub fn write_pack(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    entries: Vec<Entry>,
) -> Result<(), String> {
    let mut writer = burn_store::BurnpackWriter::new(entries.into_iter().map(snapshot).collect());
    for (key, value) in metadata {
        writer = writer.with_metadata(key, value);
    }
    writer
        .write_to_file(path)
        .map_err(|error| error.to_string())
}

#[cfg(not(feature = "since_0_20"))]
pub fn read_pack(_path: &Path) -> Result<Pack, String> {
    unreachable!("READS_PACKS")
}

#[cfg(not(feature = "since_0_20"))]
pub fn write_pack(
    _path: &Path,
    _metadata: &BTreeMap<String, String>,
    _entries: Vec<Entry>,
) -> Result<(), String> {
    unreachable!("WRITES_PACKS")
}
