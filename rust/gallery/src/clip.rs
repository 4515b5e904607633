//! CLIP (Radford et al. 2021): a text and an image encoder that meet in one space.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct ClipConfig {
    pub text: EncoderConfig,
    pub image: EncoderConfig,
    pub vocab_size: usize,
    pub max_positions: usize,
    pub image_size: usize,
    pub patch_size: usize,
    pub d_shared: usize,
}

#[derive(Config, Debug)]
pub struct EncoderConfig {
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_layers: usize,
}

#[derive(Module, Debug)]
pub struct Clip {
    text: TextEncoder,
    image: ImageEncoder,
    text_projection: Linear,
    image_projection: Linear,
    /// The logarithm of the temperature; a scalar elsewhere, and one element here, as Burn has no scalars.
    logit_scale: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
pub struct TextEncoder {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
pub struct ImageEncoder {
    patches: Conv2d,
    class_embedding: Param<Tensor<1>>,
    positions: Embedding,
    norm_pre: LayerNorm,
    blocks: Vec<Block>,
    norm_post: LayerNorm,
}

#[derive(Module, Debug)]
pub struct Block {
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

#[derive(Module, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
}

impl EncoderConfig {
    fn blocks(&self, device: &Device) -> Vec<Block> {
        let block = |_| Block {
            attention: MultiHeadAttentionConfig::new(self.d_model, self.n_heads).init(device),
            attention_norm: self.norm(device),
            mlp: Mlp {
                up: LinearConfig::new(self.d_model, self.d_ff).init(device),
                down: LinearConfig::new(self.d_ff, self.d_model).init(device),
            },
            mlp_norm: self.norm(device),
        };
        (0..self.n_layers).map(block).collect()
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.d_model).init(device)
    }
}

impl Block {
    fn forward(&self, x: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Tensor<3> {
        let mut input = MhaInput::self_attn(self.attention_norm.forward(x.clone()));
        if let Some(mask) = mask {
            input = input.mask_attn(mask);
        }
        let x = x + self.attention.forward(input).context;
        let y = self.mlp.up.forward(self.mlp_norm.forward(x.clone()));
        let y = y.clone() * sigmoid(y * 1.702); // CLIP's own approximation of GELU
        x + self.mlp.down.forward(y)
    }
}

impl TextEncoder {
    /// Return the state of the token with the greatest id: the end of the text.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let mask = generate_autoregressive_mask(batch, length, &device);
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze();
        let x = self.tokens.forward(tokens.clone()) + self.positions.forward(positions);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, Some(mask.clone())));
        let x = self.norm.forward(x);
        let d_model = x.dims()[2];
        let ends = tokens.argmax(1).unsqueeze_dim::<3>(2);
        x.gather(1, ends.expand([batch, 1, d_model]))
            .squeeze_dim::<2>(1)
    }
}

impl ImageEncoder {
    /// Return the state of the class token.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let patches = self
            .patches
            .forward(images)
            .flatten::<3>(2, 3)
            .swap_dims(1, 2);
        let [batch, count, d_model] = patches.dims();
        let class = self.class_embedding.val().expand([batch, 1, d_model]);
        let positions = Tensor::arange(0..count as i64 + 1, &patches.device()).unsqueeze();
        let x = Tensor::cat(vec![class, patches], 1) + self.positions.forward(positions);
        let x = self.norm_pre.forward(x);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, None));
        self.norm_post
            .forward(x.narrow(1, 0, 1).squeeze_dim::<2>(1))
    }
}

fn normalized(x: Tensor<2>) -> Tensor<2> {
    let length = x.clone().square().sum_dim(1).sqrt();
    x / length
}

impl Clip {
    /// Return how well each image (row) fits each text (column).
    pub fn forward(&self, images: Tensor<4>, tokens: Tensor<2, Int>) -> Tensor<2> {
        let image = self.image_projection.forward(self.image.forward(images));
        let text = self.text_projection.forward(self.text.forward(tokens));
        let scale = self.logit_scale.val().exp().unsqueeze();
        normalized(image).matmul(normalized(text).transpose()) * scale
    }
}

impl Example for Clip {
    type Config = ClipConfig;

    fn new(config: &ClipConfig, device: &Device) -> Self {
        let (text, image) = (&config.text, &config.image);
        let linear = |d_input| {
            LinearConfig::new(d_input, config.d_shared)
                .with_bias(false)
                .init(device)
        };
        let size = config.patch_size;
        let count = (config.image_size / size).pow(2) + 1;
        Self {
            text: TextEncoder {
                tokens: EmbeddingConfig::new(config.vocab_size, text.d_model).init(device),
                positions: EmbeddingConfig::new(config.max_positions, text.d_model).init(device),
                blocks: text.blocks(device),
                norm: text.norm(device),
            },
            image: ImageEncoder {
                patches: Conv2dConfig::new([3, image.d_model], [size, size])
                    .with_stride([size, size])
                    .with_bias(false)
                    .init(device),
                class_embedding: Initializer::Zeros.init([image.d_model], device),
                positions: EmbeddingConfig::new(count, image.d_model).init(device),
                norm_pre: image.norm(device),
                blocks: image.blocks(device),
                norm_post: image.norm(device),
            },
            text_projection: linear(text.d_model),
            image_projection: linear(image.d_model),
            logit_scale: Initializer::Constant { value: 2.6592 }.init([1], device),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        let logits = self.forward(inputs.float("images"), inputs.int("tokens"));
        vec![("logits", logits.into_data())]
    }
}
