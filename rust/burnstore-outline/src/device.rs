// Burn from 0.22 on: modules have no backend parameter. Included by lib.rs once for each version.

use std::path::Path;

use burn::module::{DisplaySettings, Module, ModuleDisplay, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn_store::{BurnpackStore, ModuleSnapshot};

use crate::record::Record;

/// Save an untrained model with the kinds of its modules; see the crate's documentation.
///
/// An existing file is replaced only if its name ends with `.outline.bpk`.
///
/// # Errors
///
/// Returns the store's message if the file exists or cannot be written.
pub fn save<M: Module + ModuleDisplay>(
    model: &M,
    path: impl AsRef<Path>,
) -> Result<(), crate::Error> {
    let path = path.as_ref();
    let mut store = BurnpackStore::from_file(path)
        .overwrite(crate::is_outline_name(path))
        .metadata(crate::KEY, describe(model));
    model
        .save_into(&mut store)
        .map_err(|error| crate::Error(error.to_string()))
}

/// Return the outline of a model as JSON, as [`save`] stores it under [`KEY`](crate::KEY).
pub fn describe<M: Module + ModuleDisplay>(model: &M) -> String {
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

impl ModuleVisitor for Walk {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
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
