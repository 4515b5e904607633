//! ViT (Dosovitskiy et al. 2020) on Burn's `TransformerEncoder` with its norms first.
//!
//! With `norm_first` Burn's `norm_2` stands before the attention and `norm_1` before the feed-forward.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct VisionTransformerConfig {
    pub image_size: usize,
    pub patch_size: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_layers: usize,
    pub num_classes: usize,
    #[config(default = 1e-12)]
    pub norm_eps: f64,
}

#[derive(Module, Debug)]
pub struct VisionTransformer {
    patches: Conv2d,
    class_token: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    encoder: TransformerEncoder,
    norm: LayerNorm,
    head: Linear,
}

impl VisionTransformer {
    /// Return the logits of images `[batch, 3, height, width]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let patches = self
            .patches
            .forward(images)
            .flatten::<3>(2, 3)
            .swap_dims(1, 2);
        let [batch, _, d_model] = patches.dims();
        let class_token = self.class_token.val().expand([batch, 1, d_model]);
        let x = Tensor::cat(vec![class_token, patches], 1) + self.positions.val();
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let first = self.norm.forward(x).narrow(1, 0, 1).squeeze_dim::<2>(1);
        self.head.forward(first)
    }
}

impl Example for VisionTransformer {
    type Config = VisionTransformerConfig;

    fn new(config: &VisionTransformerConfig, device: &Device) -> Self {
        let (size, d_model) = (config.patch_size, config.d_model);
        let count = (config.image_size / size).pow(2) + 1;
        let normal = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Self {
            patches: Conv2dConfig::new([3, d_model], [size, size])
                .with_stride([size, size])
                .init(device),
            class_token: Initializer::Zeros.init([1, 1, d_model], device),
            positions: normal.init([1, count, d_model], device),
            encoder: TransformerEncoderConfig::new(
                d_model,
                config.d_ff,
                config.n_heads,
                config.n_layers,
            )
            .with_norm_first(true)
            .with_layer_norm_eps(config.norm_eps)
            .init(device),
            norm: LayerNormConfig::new(d_model)
                .with_epsilon(config.norm_eps)
                .init(device),
            head: LinearConfig::new(d_model, config.num_classes).init(device),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        vec![("logits", self.forward(inputs.float("images")).into_data())]
    }
}
