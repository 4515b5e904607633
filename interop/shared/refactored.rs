//! A training that goes on after every field of its model was renamed: two structs of one network, one program.
//!
//! The package's program says what differs between the versions: `Float`, `Trainable`, `on!`, `with_backend!`.

use std::ops::Range;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use serde_json::{Value, json};

use crate::training_kinds::{STEPS, gradient};
use crate::{Device, Float, Trainable, on, with_backend};
#[cfg(not(feature = "since_0_22"))]
use burn::tensor::backend::Backend;

const WIDTH: usize = 4;

macro_rules! declare {
    ({$($generics:tt)*} $($b:ident)?) => {
        #[derive(Module, Debug)]
        pub struct Layer<$($generics)*> {
            norm: LayerNorm<$($b)?>,
            fc1: Linear<$($b)?>,
            fc2: Linear<$($b)?>,
        }

        #[derive(Module, Debug)]
        pub struct Before<$($generics)*> {
            embed: Linear<$($b)?>,
            layers: Vec<Layer<$($b)?>>,
            head: Linear<$($b)?>,
        }

        #[derive(Module, Debug)]
        pub struct Mlp<$($generics)*> {
            down: Linear<$($b)?>,
            up: Linear<$($b)?>,
            pre: LayerNorm<$($b)?>,
        }

        #[derive(Module, Debug)]
        pub struct After<$($generics)*> {
            classifier: Linear<$($b)?>,
            trunk: Vec<Mlp<$($b)?>>,
            stem: Linear<$($b)?>,
        }
    };
}
with_backend!(declare);

pub trait Network: Trainable {
    fn new(device: &Device) -> Self;
    fn forward(&self, input: Float<2>) -> Float<2>;
    /// Every parameter, in the order of the computation.
    fn values(&self) -> Vec<f32>;
}

macro_rules! network {
    ($model:ident { $first:ident, $blocks:ident, $last:ident }, $block:ident { $norm:ident, $up:ident, $down:ident }) => {
        impl Network for on!($model) {
            fn new(device: &Device) -> Self {
                let square = || LinearConfig::new(WIDTH, WIDTH).init(device);
                $model {
                    $first: LinearConfig::new(3, WIDTH).init(device),
                    $blocks: (0..2)
                        .map(|_| $block {
                            $norm: LayerNormConfig::new(WIDTH).init(device),
                            $up: square(),
                            $down: square(),
                        })
                        .collect(),
                    $last: LinearConfig::new(WIDTH, 2).init(device),
                }
            }

            fn forward(&self, input: Float<2>) -> Float<2> {
                let mut hidden = self.$first.forward(input);
                for block in &self.$blocks {
                    let inner = block.$up.forward(block.$norm.forward(hidden.clone()));
                    hidden = hidden + block.$down.forward(inner.tanh());
                }
                self.$last.forward(hidden)
            }

            fn values(&self) -> Vec<f32> {
                let mut linears = vec![&self.$first];
                let mut told = Vec::new();
                for block in &self.$blocks {
                    linears.extend([&block.$up, &block.$down]);
                    told.push(block.$norm.gamma.val().into_data());
                    told.push(block.$norm.beta.as_ref().unwrap().val().into_data());
                }
                linears.push(&self.$last);
                for linear in linears {
                    told.push(linear.weight.val().into_data());
                    told.push(linear.bias.as_ref().unwrap().val().into_data());
                }
                told.iter().flat_map(|data| data.iter::<f32>()).collect()
            }
        }
    };
}
network!(
    Before {
        embed,
        layers,
        head
    },
    Layer { norm, fc1, fc2 }
);
network!(
    After {
        stem,
        trunk,
        classifier
    },
    Mlp { pre, up, down }
);

fn batch<const D: usize>(step: usize, shape: [usize; D], device: &Device) -> Float<D> {
    let values = gradient(step, shape.iter().product());
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Some steps: forward, loss, gradients, and what `update` does with them.
pub fn stepped<M: Network>(
    mut model: M,
    steps: Range<usize>,
    device: &Device,
    mut update: impl FnMut(M, GradientsParams) -> M,
) -> M {
    for step in steps {
        let wanted = batch(step + 1, [5, 2], device);
        let error = model.forward(batch(step, [5, 3], device)) - wanted;
        let gradients = (error.clone() * error).mean().backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = update(model, gradients);
    }
    model
}

/// A training that is saved halfway and goes on: the parameters where it ends.
pub fn uninterrupted<O>(
    mut optimizer: O,
    device: &Device,
    step: impl Fn(&mut O, on!(Before), GradientsParams) -> on!(Before),
    save: impl FnOnce(&on!(Before), &O),
) -> Value {
    let model = Network::new(device);
    let model = stepped(model, 0..STEPS, device, |model, gradients| {
        step(&mut optimizer, model, gradients)
    });
    save(&model, &optimizer);
    let model = stepped(model, STEPS..2 * STEPS, device, |model, gradients| {
        step(&mut optimizer, model, gradients)
    });
    json!(model.values())
}
