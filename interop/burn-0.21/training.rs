//! The first half of a training, in the last Burn with recorders: some steps, its records, and what comes after them.
//!
//! `burn-training optimizer|scheduler NAME FOLDER` saves `model.mpk` and `optimizer.mpk`, or `scheduler.mpk`, in the folder
//! and prints the parameters after as many steps more, or the next learning rates. `begin NAME FOLDER` does the same with
//! a network, `Before`, whose fields get other names before the training goes on elsewhere.

use std::path::Path;

use burn::backend::{Autodiff, NdArray};
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::AutodiffModule;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, Optimizer, RmsPropConfig,
    SgdConfig,
};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder, Recorder};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use serde_json::{Value, json};

#[path = "../shared/training_kinds.rs"]
mod training_kinds;
use training_kinds::{RATE, STEPS, gradient};

#[path = "../shared/refactored.rs"]
#[allow(dead_code)] // what another version goes on with
mod refactored;
use refactored::{Before, uninterrupted};

type Inner = NdArray<f32>;
type B = Autodiff<Inner>;
type Device = burn::backend::ndarray::NdArrayDevice;
type Float<const D: usize> = Tensor<B, D>;
trait Trainable: AutodiffModule<B> {}
impl<M: AutodiffModule<B>> Trainable for M {}
macro_rules! on {
    ($module:ident) => { $module<crate::B> };
}
macro_rules! with_backend {
    ($declare:ident) => {
        $declare!({B: Backend} B);
    };
}
use {on, with_backend};

fn begin<O: Optimizer<Before<B>, B>>(optimizer: O, folder: &Path) -> Value {
    let device = Device::default();
    B::seed(&device, 42);
    uninterrupted(
        optimizer,
        &device,
        |optimizer, model, gradients| optimizer.step(RATE, model, gradients),
        |model, optimizer| save(model.clone(), optimizer, folder),
    )
}

fn save<M: AutodiffModule<B>, O: Optimizer<M, B>>(model: M, optimizer: &O, folder: &Path) {
    let recorder = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    let saved = model.save_file(folder.join("model"), &recorder);
    saved.expect("the model is saved");
    let saved = recorder.record(optimizer.to_record(), folder.join("optimizer"));
    saved.expect("the optimizer is saved");
}

fn gradients(model: &Linear<B>, step: usize) -> GradientsParams {
    let device = Default::default();
    let weight = TensorData::new(gradient(step, 6), [3, 2]);
    let bias = TensorData::new(gradient(step + 1, 2), [2]);
    let mut gradients = GradientsParams::new();
    gradients.register(
        model.weight.id,
        Tensor::<Inner, 2>::from_data(weight, &device),
    );
    let id = model.bias.as_ref().unwrap().id;
    gradients.register(id, Tensor::<Inner, 1>::from_data(bias, &device));
    gradients
}

fn train<O: Optimizer<Linear<B>, B>>(mut optimizer: O, folder: &Path) -> Value {
    let mut model = LinearConfig::new(3, 2).init(&Default::default());
    for step in 0..2 * STEPS {
        if step == STEPS {
            save(model.clone(), &optimizer, folder);
        }
        let gradients = gradients(&model, step);
        model = optimizer.step(RATE, model, gradients);
    }
    let weight: Vec<f32> = model.weight.val().into_data().to_vec().unwrap();
    let bias: Vec<f32> = model.bias.unwrap().val().into_data().to_vec().unwrap();
    json!({"weight": weight, "bias": bias})
}

fn schedule<S: LrScheduler>(mut scheduler: S, folder: &Path) -> Value {
    (0..STEPS).for_each(|_| {
        scheduler.step();
    });
    let recorder = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    let saved = recorder.record(scheduler.to_record::<B>(), folder.join("scheduler"));
    saved.expect("the scheduler is saved");
    json!((0..STEPS).map(|_| scheduler.step()).collect::<Vec<_>>())
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, name, folder] = words.as_slice() else {
        panic!("usage: burn-training optimizer|scheduler|begin NAME FOLDER");
    };
    let folder = Path::new(folder);
    macro_rules! trained {
        ($config:expr) => {
            train($config.init(), folder)
        };
    }
    macro_rules! begun {
        ($config:expr) => {
            begin($config.init(), folder)
        };
    }
    macro_rules! scheduled {
        ($config:expr) => {
            schedule($config.init().unwrap(), folder)
        };
    }
    let told = match what.as_str() {
        "optimizer" => with_optimizer!(name.as_str(), trained),
        "scheduler" => with_scheduler!(name.as_str(), scheduled),
        "begin" => with_optimizer!(name.as_str(), begun),
        other => panic!("no command {other}"),
    };
    println!("{told}");
}
