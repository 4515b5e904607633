//! What all models have in common: inputs and outputs as Burnpack files, the outline, the strict load.

use std::collections::BTreeMap;
use std::path::Path;

use burn::config::Config;
use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_store::burn_pack::{Reader, Tensor as Packed, Writer};
use burn_store::{BurnpackStore, ModuleSnapshot, bridge};

/// A model of the gallery.
pub trait Example: Module + ModuleDisplay {
    /// What is read from the configuration file.
    type Config: Config;

    /// Make the model with random weights.
    fn new(config: &Self::Config, device: &Device) -> Self;

    /// Feed the model and return what it computes, by name.
    fn run(&self, inputs: &Inputs) -> Outputs;
}

/// Named results.
pub type Outputs = Vec<(&'static str, TensorData)>;

/// Named tensors of the input file.
pub struct Inputs {
    tensors: BTreeMap<String, TensorData>,
    device: Device,
}

impl Inputs {
    fn read(path: &str) -> Result<Self, String> {
        let tensors = Reader::from_file_exact(Path::new(path))
            .and_then(Reader::into_tensors)
            .map_err(|error| format!("{path}: {error}"))?
            .into_iter()
            .map(|tensor| {
                let name = tensor.name.clone();
                let data = bridge::into_data(tensor).map_err(|error| format!("{path}: {error}"))?;
                Ok((name, data))
            })
            .collect::<Result<_, String>>()?;
        let device = Device::default();
        Ok(Self { tensors, device })
    }

    fn data(&self, name: &str) -> TensorData {
        match self.tensors.get(name) {
            Some(data) => data.clone(),
            None => panic!("no input {name}"),
        }
    }

    /// Return a float input.
    pub fn float<const D: usize>(&self, name: &str) -> Tensor<D> {
        Tensor::from_data(self.data(name), &self.device)
    }

    /// Return an integer input.
    pub fn int<const D: usize>(&self, name: &str) -> Tensor<D, Int> {
        Tensor::from_data(self.data(name), &self.device)
    }

    /// Return a mask of ones and zeros as Burn's attention takes it: true where there is padding.
    pub fn padding(&self, name: &str) -> Tensor<2, Bool> {
        self.int::<2>(name).equal_elem(0)
    }
}

/// Carry out the words after the model's name.
pub fn command<M: Example>(words: &[&str]) -> Result<(), String> {
    match words {
        ["outline", config, out] => burnstore_outline::save(&untrained::<M>(config)?, out)
            .map_err(|error| error.to_string()),
        ["record", config, inputs, out] => {
            let model = burnstore_outline::stir(untrained::<M>(config)?, 5);
            record(&model, inputs, out)
        }
        ["record", config, inputs, out, weights] => {
            let mut model = untrained::<M>(config)?;
            load_strictly(&mut model, weights)?;
            record(&model, inputs, out)
        }
        ["forward", config, weights, inputs, out] => {
            let mut model = untrained::<M>(config)?;
            load_strictly(&mut model, weights)?;
            write(out, model.run(&Inputs::read(inputs)?))
        }
        _ => Err(
            "usage: gallery MODEL outline CONFIG OUT | record CONFIG INPUTS OUT [WEIGHTS] | \
             forward CONFIG WEIGHTS INPUTS OUT"
                .into(),
        ),
    }
}

/// Save a model with what it computes from the tensors of a file.
fn record<M: Example>(model: &M, inputs: &str, out: &str) -> Result<(), String> {
    let inputs = Inputs::read(inputs)?;
    let mut forward = burnstore_outline::Forward::default();
    for (name, data) in &inputs.tensors {
        forward.input(name, data);
    }
    for (name, data) in model.run(&inputs) {
        // A path names the module that computed a tensor.
        if name.contains('.') {
            forward.inner(name, &data);
        } else {
            forward.output(name, &data);
        }
    }
    burnstore_outline::record_forward(model, &forward, out).map_err(|error| error.to_string())
}

fn untrained<M: Example>(config: &str) -> Result<M, String> {
    let config = M::Config::load(config).map_err(|error| format!("{config}: {error:?}"))?;
    Ok(M::new(&config, &Device::default()))
}

/// Load a file; Burn itself lets tensors pass that the model has no use for.
fn load_strictly<M: Example>(model: &mut M, path: &str) -> Result<(), String> {
    let result = model
        .load_from(&mut BurnpackStore::from_file(path))
        .map_err(|error| format!("{path}: {error}"))?;
    if result.unused.is_empty() {
        return Ok(());
    }
    Err(format!("{path}: unused tensors: {:?}", result.unused))
}

fn write(path: &str, outputs: Outputs) -> Result<(), String> {
    let packed = outputs
        .into_iter()
        .map(|(name, data)| bridge::from_data(data, name.to_owned(), None))
        .collect::<Vec<Packed>>();
    Writer::new(packed)
        .write_to_file(path)
        .map_err(|error| format!("{path}: {error}"))
}
