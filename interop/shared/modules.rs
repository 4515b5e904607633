#![allow(non_snake_case)]
//! The modules that Burn's library does not have: every way of nesting, naming and typing parameters.

use burn::module::Module;
use burn::nn::conv::Conv1d;
use burn::nn::*;

#[cfg(not(feature = "since_0_22"))]
use crate::api::Backend;
use crate::api::{BoolParam, FloatParam, IntParam, with_backend};

/// Declares all modules with the generic parameters of the version: `B: Backend`, or none from 0.22 on.
macro_rules! declare {
    ({$($generics:tt)*} $($b:ident)?) => {
        #[derive(Module, Debug)]
        pub struct Basic<$($generics)*> {
            pub linear: Linear<$($b)?>,
            pub linear_nobias: Linear<$($b)?>,
            pub conv: burn::nn::conv::Conv2d<$($b)?>,
            pub batch: BatchNorm<$($b)?>,
            pub layer: LayerNorm<$($b)?>,
            pub group: GroupNorm<$($b)?>,
            pub instance: InstanceNorm<$($b)?>,
            pub rms: RmsNorm<$($b)?>,
            pub embedding: Embedding<$($b)?>,
            pub dropout: Dropout,
        }

        #[derive(Module, Debug)]
        pub struct Leaf<$($generics)*> {
            pub fc: Linear<$($b)?>,
            pub scale: FloatParam<$($b,)? 1>,
        }

        #[derive(Module, Debug)]
        pub struct Branch<$($generics)*> {
            pub left: Leaf<$($b)?>,
            pub right: Leaf<$($b)?>,
            pub maybe_some: Option<Linear<$($b)?>>,
            pub maybe_none: Option<Linear<$($b)?>>,
        }

        #[derive(Module, Debug)]
        pub struct Nested<$($generics)*> {
            pub trunk: Branch<$($b)?>,
            pub stack: Vec<Linear<$($b)?>>,
            pub array: [LayerNorm<$($b)?>; 2],
            pub pair: (Linear<$($b)?>, LayerNorm<$($b)?>),
            pub raw: Vec<FloatParam<$($b,)? 1>>,
        }

        #[derive(Module, Debug)]
        pub enum Block<$($generics)*> {
            Dense(Linear<$($b)?>),
            Conv(Conv1d<$($b)?>),
            Norm(LayerNorm<$($b)?>),
        }

        #[derive(Module, Debug)]
        pub struct Enums<$($generics)*> {
            pub head: Block<$($b)?>,
            pub blocks: Vec<Block<$($b)?>>,
            pub tail: Block<$($b)?>,
        }

        /// A payload of each shape: an enum, a struct, a list, a bare parameter.
        #[derive(Module, Debug)]
        pub enum Outer<$($generics)*> {
            Inner(Block<$($b)?>),
            Leaf(Leaf<$($b)?>),
            Many(Vec<Linear<$($b)?>>),
            Scale(FloatParam<$($b,)? 1>),
        }

        #[derive(Module, Debug)]
        pub struct NestedEnums<$($generics)*> {
            pub first: Outer<$($b)?>,
            pub rest: Vec<Outer<$($b)?>>,
            pub maybe: Option<Outer<$($b)?>>,
        }

        /// Tuples of equal types would share their paths in 0.19.
        #[cfg(feature = "since_0_20")]
        #[derive(Module, Debug)]
        pub struct Containers<$($generics)*> {
            pub grid: Vec<Vec<Linear<$($b)?>>>,
            pub gaps: Vec<Option<LayerNorm<$($b)?>>>,
            pub maybe_list: Option<Vec<Linear<$($b)?>>>,
            pub empty_list: Vec<Linear<$($b)?>>,
            pub triple: (Linear<$($b)?>, Leaf<$($b)?>, Linear<$($b)?>),
            pub pairs: [(Linear<$($b)?>, LayerNorm<$($b)?>); 2],
            pub eleven: [RmsNorm<$($b)?>; 11],
        }

        #[derive(Module, Debug)]
        #[allow(non_snake_case)]
        pub struct Names<$($generics)*> {
            pub größe: Linear<$($b)?>,
            pub r#type: FloatParam<$($b,)? 1>,
            pub _hidden: FloatParam<$($b,)? 1>,
            pub CamelCase: FloatParam<$($b,)? 1>,
        }

        #[derive(Module, Debug)]
        pub struct Scalars<$($generics)*> {
            pub one: FloatParam<$($b,)? 1>,
            pub zero_first: FloatParam<$($b,)? 2>,
            pub zero_mid: FloatParam<$($b,)? 3>,
            pub eight: FloatParam<$($b,)? 8>,
            pub int_one: IntParam<$($b,)? 1>,
            pub zero_last: FloatParam<$($b,)? 1>,
        }

        #[derive(Module, Debug)]
        pub struct Bools<$($generics)*> {
            pub weight: FloatParam<$($b,)? 1>,
            pub mask: BoolParam<$($b,)? 2>,
        }

        #[derive(Module, Debug)]
        pub struct Dtypes<$($generics)*> {
            pub f64: FloatParam<$($b,)? 1>,
            pub f32: FloatParam<$($b,)? 2>,
            pub f16: Option<FloatParam<$($b,)? 1>>,
            pub bf16: Option<FloatParam<$($b,)? 2>>,
            pub i64: IntParam<$($b,)? 1>,
            pub i32: IntParam<$($b,)? 2>,
            pub i16: IntParam<$($b,)? 1>,
            pub i8: IntParam<$($b,)? 1>,
            pub u64: Option<IntParam<$($b,)? 1>>,
            pub u32: Option<IntParam<$($b,)? 1>>,
            pub u16: Option<IntParam<$($b,)? 1>>,
            pub u8: Option<IntParam<$($b,)? 1>>,
            pub flag: BoolParam<$($b,)? 2>,
        }

        #[derive(Module, Debug)]
        pub struct Empty<$($generics)*> {
            pub nothing: Option<Linear<$($b)?>>,
        }

        #[derive(Module, Debug)]
        pub struct Layers<$($generics)*> {
            pub layers: Vec<Linear<$($b)?>>,
        }

        /// Whole blocks and words of every scheme, rows that fill neither, and few lines of few blocks.
        #[derive(Module, Debug)]
        pub struct Quantized<$($generics)*> {
            pub values: Vec<FloatParam<$($b,)? 2>>,
            pub odd: Vec<FloatParam<$($b,)? 2>>,
            pub small: Vec<FloatParam<$($b,)? 2>>,
        }

        /// The same parameters twice, under two names and with the same ids.
        #[derive(Module, Debug)]
        pub struct Tied<$($generics)*> {
            pub first: Linear<$($b)?>,
            pub second: Linear<$($b)?>,
        }

        #[derive(Module, Debug)]
        pub struct Activations<$($generics)*> {
            pub items: Vec<activation::Activation<$($b)?>>,
        }

        #[derive(Module, Debug)]
        pub struct Norms<$($generics)*> {
            pub items: Vec<norm::Normalization<$($b)?>>,
        }
    };
}

with_backend!(declare);

/// Layers that hold nothing a file could store, around one that does.
#[cfg(feature = "since_0_22")]
#[derive(Module, Debug)]
pub struct Parameterless {
    pub dropout: Dropout,
    pub noise: GaussianNoise,
    pub identity: Identity,
    pub gelu: Gelu,
    pub leaky_relu: LeakyRelu,
    pub rrelu: activation::RRelu,
    pub max_pool: pool::MaxPool2d,
    pub avg_pool: pool::AvgPool1d,
    pub adaptive: pool::AdaptiveAvgPool2d,
    pub interpolate: interpolate::Interpolate2d,
    pub unfold: Unfold4d,
    pub shuffle: PixelShuffle,
    pub local_response: LocalResponseNorm,
    pub positions: PositionalEncoding,
    pub rotary: RotaryEncoding,
    pub linear: Linear,
    pub cross_entropy: loss::CrossEntropyLoss,
    pub huber: loss::HuberLoss,
}

/// What the derive accepts from 0.23 on: tuple structs and boxes.
#[cfg(feature = "since_0_23")]
#[derive(Module, Debug)]
pub struct Positional(pub Linear, pub Box<LayerNorm>);
