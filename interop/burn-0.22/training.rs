//! The second half of a training, in a Burn whose training state is Burnpack.
//!
//! `burn-training begin NAME FOLDER` is a whole training of `Before`, which saves `model.bpk` and `optimizer.bpk` halfway;
//! `burn-training resume NAME FOLDER` loads the two into an `After` and goes on, `resumed` with the state, `forgotten`
//! without.
//!
//! `burn-training optimizer|scheduler NAME FOLDER` loads `model.bpk` and `optimizer.bpk`, or `scheduler.bpk`, and prints as
//! `resumed` the parameters after some steps more, or the next learning rates, and as `forgotten` what they would be
//! without that state. What it loaded it saves as `loaded.bpk`.

use std::path::Path;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::module::{Module, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams, ModuleOptimizer,
    RmsPropConfig, SgdConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use burn_store::{BurnpackStore, ModuleSnapshot};
use serde_json::{Value, json};

#[path = "../shared/training_kinds.rs"]
mod training_kinds;
use training_kinds::{RATE, STEPS, gradient};

#[path = "../shared/refactored.rs"]
mod refactored;
use refactored::{After, Network, stepped, uninterrupted};

type Float<const D: usize> = Tensor<D>;
trait Trainable: Module {}
impl<M: Module> Trainable for M {}
macro_rules! on {
    ($module:ident) => {
        $module
    };
}
macro_rules! with_backend {
    ($declare:ident) => {
        $declare!({});
    };
}
use {on, with_backend};

fn begin(optimizer: ModuleOptimizer, folder: &Path) -> Value {
    Device::default().seed(42);
    let device = Device::default().autodiff();
    uninterrupted(
        optimizer,
        &device,
        |optimizer, model, gradients| optimizer.step(RATE, model, gradients),
        |model, optimizer| {
            let saved = model.save_into(&mut BurnpackStore::from_file(folder.join("model.bpk")));
            saved.expect("the model is saved");
            let saved = optimizer.save(folder.join("optimizer.bpk"));
            saved.expect("the optimizer is saved");
        },
    )
}

fn resume_renamed(optimizer: impl Fn() -> ModuleOptimizer, folder: &Path) -> Value {
    let device = Device::default().autodiff();
    let mut model = After::new(&device);
    let loaded = model.load_from(&mut BurnpackStore::from_file(folder.join("model.bpk")));
    loaded.expect("the model is loaded");
    let loaded = optimizer().load(folder.join("optimizer.bpk"));
    let loaded = loaded.expect("the optimizer is loaded");
    loaded.save(folder.join("loaded.bpk")).expect("and saved");
    let ends = |mut optimizer: ModuleOptimizer| {
        let steps = STEPS..2 * STEPS;
        let end = stepped(model.clone(), steps, &device, |model, gradients| {
            optimizer.step(RATE, model, gradients)
        });
        end.values()
    };
    json!({"resumed": ends(loaded), "forgotten": ends(optimizer())})
}

fn gradients(weight: ParamId, bias: ParamId, step: usize) -> GradientsParams {
    let device = Device::default();
    let values = TensorData::new(gradient(step, 6), [3, 2]);
    let mut gradients = GradientsParams::new();
    gradients.register(weight, Tensor::<2>::from_data(values, &device));
    let values = TensorData::new(gradient(step + 1, 2), [2]);
    gradients.register(bias, Tensor::<1>::from_data(values, &device));
    gradients
}

fn continued(mut optimizer: ModuleOptimizer, mut model: Linear) -> Value {
    for step in STEPS..2 * STEPS {
        let gradients = gradients(model.weight.id, model.bias.as_ref().unwrap().id, step);
        model = optimizer.step(RATE, model, gradients);
    }
    let weight: Vec<f32> = model.weight.val().into_data().try_to_vec().unwrap();
    let bias: Vec<f32> = model.bias.unwrap().val().into_data().try_to_vec().unwrap();
    json!({"weight": weight, "bias": bias})
}

fn resume(optimizer: impl Fn() -> ModuleOptimizer, folder: &Path) -> Value {
    let device = Device::default().autodiff();
    let mut model = LinearConfig::new(3, 2).init(&device);
    let loaded = model.load_from(&mut BurnpackStore::from_file(folder.join("model.bpk")));
    loaded.expect("the model is loaded");
    let loaded = optimizer().load(folder.join("optimizer.bpk"));
    let loaded = loaded.expect("the optimizer is loaded");
    loaded.save(folder.join("loaded.bpk")).expect("and saved");
    json!({
        "resumed": continued(loaded, model.clone()),
        "forgotten": continued(optimizer(), model),
    })
}

fn rates(mut scheduler: ModuleLrScheduler) -> Vec<f64> {
    (0..STEPS).map(|_| scheduler.step().base()).collect()
}

fn reschedule(scheduler: ModuleLrScheduler, folder: &Path) -> Value {
    let record = LrSchedulerRecord::load(folder.join("scheduler.bpk"));
    let loaded = scheduler
        .clone()
        .load_record(record.expect("the scheduler is loaded"));
    let saved = loaded.to_record().save(folder.join("loaded.bpk"));
    saved.expect("and saved");
    json!({"resumed": rates(loaded), "forgotten": rates(scheduler)})
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, name, folder] = words.as_slice() else {
        panic!("usage: burn-training optimizer|scheduler|begin|resume NAME FOLDER");
    };
    let folder = Path::new(folder);
    macro_rules! resumed {
        ($config:expr) => {
            resume(|| $config.init(), folder)
        };
    }
    macro_rules! begun {
        ($config:expr) => {
            begin($config.init(), folder)
        };
    }
    macro_rules! renamed {
        ($config:expr) => {
            resume_renamed(|| $config.init(), folder)
        };
    }
    macro_rules! rescheduled {
        ($config:expr) => {
            reschedule($config.init().unwrap(), folder)
        };
    }
    let told = match what.as_str() {
        "optimizer" => with_optimizer!(name.as_str(), resumed),
        "scheduler" => with_scheduler!(name.as_str(), rescheduled),
        "begin" => with_optimizer!(name.as_str(), begun),
        "resume" => with_optimizer!(name.as_str(), renamed),
        other => panic!("no command {other}"),
    };
    println!("{told}");
}
