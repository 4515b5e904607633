// Burn 0.20 and 0.21: modules are generic over their backend. Included by lib.rs once for each version.

use std::path::Path;

use burn::module::{DisplaySettings, Module, ModuleDisplay, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Float, Int, Tensor, TensorData, backend::Backend};
use burn_store::{BurnpackStore, ModuleSnapshot};

use crate::forward::{Forward, Recordable, Recorded};
use crate::record::Record;

/// Save an untrained model with the kinds of its modules; see the crate's documentation.
///
/// An existing file is replaced only if its name ends with `.outline.bpk`.
///
/// # Errors
///
/// Returns the store's message if the file exists or cannot be written.
pub fn save<B: Backend, M: Module<B> + ModuleDisplay>(
    model: &M,
    path: impl AsRef<Path>,
) -> Result<(), crate::Error> {
    model
        .save_into(&mut store(model, path.as_ref()))
        .map_err(|error| crate::Error(error.to_string()))
}

/// Save a model with the kinds of its modules, and with what it computed: `burnstore prove` feeds PyTorch the same.
///
/// The model may be untrained (after [`stir`], so that no two tensors are equal) or trained.
/// An existing file is replaced only if its name ends with `.outline.bpk`.
///
/// # Errors
///
/// Returns the store's message, or the reason why the forward pass cannot be stored: it has no input or no output, or
/// more than [`MOST_BYTES`](crate::MOST_BYTES).
pub fn record_forward<B: Backend, M: Module<B> + ModuleDisplay>(
    model: &M,
    forward: &Forward,
    path: impl AsRef<Path>,
) -> Result<(), crate::Error> {
    let recorded = forward.json().map_err(crate::Error)?;
    let mut store = store(model, path.as_ref()).metadata(crate::FORWARD_KEY, recorded);
    model
        .save_into(&mut store)
        .map_err(|error| crate::Error(error.to_string()))
}

/// Return an untrained model in which no tensor is constant: ones and zeros get random numbers added, by the seed.
///
/// Norms begin with ones and biases with zeros, so that the outputs of an untrained model do not show whether two of
/// them are exchanged. Tensors of which the values differ, or are not finite, stay unchanged.
#[must_use]
pub fn stir<B: Backend, M: Module<B> + ModuleDisplay>(model: M, seed: u64) -> M {
    model.map(&mut Stirring(Forward::seeded(seed)))
}

fn store<B: Backend, M: Module<B> + ModuleDisplay>(model: &M, path: &Path) -> BurnpackStore {
    BurnpackStore::from_file(path)
        .overwrite(crate::is_outline_name(path))
        .metadata(crate::KEY, describe(model))
}

struct Stirring(Forward);

impl<B: Backend> ModuleMapper<B> for Stirring {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| {
            let values: Vec<f32> = tensor.to_data().iter::<f32>().collect();
            let is_constant = values
                .iter()
                .all(|value| *value == values[0] && value.is_finite());
            if values.is_empty() || !is_constant {
                return tensor;
            }
            let stirred: Vec<f32> = values
                .iter()
                .map(|value| value + 0.3 * self.0.unit())
                .collect();
            let noise =
                Tensor::from_data(TensorData::new(stirred, tensor.dims()), &tensor.device());
            tensor.zeros_like() + noise
        })
    }
}

impl<B: Backend, const D: usize> Recordable for Tensor<B, D, Float> {
    fn recorded(&self) -> Recorded {
        Recorded::floats(&self.dims(), self.to_data().iter::<f32>())
    }
}

impl<B: Backend, const D: usize> Recordable for Tensor<B, D, Int> {
    fn recorded(&self) -> Recorded {
        Recorded::ints(&self.dims(), self.to_data().iter::<i64>())
    }
}

impl<B: Backend, const D: usize> Recordable for Tensor<B, D, Bool> {
    fn recorded(&self) -> Recorded {
        Recorded::bools(&self.dims(), self.to_data().iter::<bool>())
    }
}

/// Return the outline of a model as JSON, as [`save`] stores it under [`KEY`](crate::KEY).
pub fn describe<B: Backend, M: Module<B> + ModuleDisplay>(model: &M) -> String {
    let mut walk = Walk(Record::default());
    model.visit(&mut walk);
    let settings = DisplaySettings::new()
        .with_show_all_attributes(true)
        .with_show_num_parameters(false)
        .with_new_line_after_attribute(false);
    walk.0.json(
        &BurnpackStore::default_metadata()["version"],
        &model.format(settings),
    )
}

struct Walk(Record);

impl<B: Backend> ModuleVisitor<B> for Walk {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if D == 2 && self.0.is_linear_weight() {
            // What a Linear does to its weight when it is saved, tried on a tensor of one row and two columns.
            let (_, value, mapper) = param.clone().consume();
            let shape: [usize; D] = core::array::from_fn(|axis| axis + 1);
            if mapper.on_save(Tensor::zeros(shape, &value.device())).dims() != shape {
                self.0.transposed();
            }
        }
    }
}
