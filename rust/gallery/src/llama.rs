//! Llama (Touvron et al. 2023) with grouped queries, on Burn's `RotaryEncoding`, `RmsNorm` and `SwiGlu`.
//!
//! Burn rotates neighbouring pairs of features, as Meta's own weights want it; those of Hugging Face are permuted for
//! a rotation of the two halves, and have to be permuted back (`permute_rope`).

use burn::config::Config;
use burn::module::Module;
use burn::nn::activation::{SwiGlu, SwiGluConfig};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, RotaryEncoding,
    RotaryEncodingConfig,
};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub n_layers: usize,
    pub max_positions: usize,
    #[config(default = 10000.0)]
    pub rope_theta: f32,
    #[config(default = 1e-6)]
    pub norm_eps: f64,
}

#[derive(Module, Debug)]
pub struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    rope: RotaryEncoding,
}

#[derive(Module, Debug)]
pub struct Block {
    attention_norm: RmsNorm,
    attention: GroupedAttention,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

#[derive(Module, Debug)]
pub struct GroupedAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    n_heads: usize,
    n_kv_heads: usize,
}

#[derive(Module, Debug)]
pub struct FeedForward {
    swiglu: SwiGlu,
    down: Linear,
}

fn linear(d_input: usize, d_output: usize, device: &Device) -> Linear {
    LinearConfig::new(d_input, d_output)
        .with_bias(false)
        .init(device)
}

impl GroupedAttention {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let d_kv = config.d_model / config.n_heads * config.n_kv_heads;
        Self {
            query: linear(config.d_model, config.d_model, device),
            key: linear(config.d_model, d_kv, device),
            value: linear(config.d_model, d_kv, device),
            output: linear(config.d_model, config.d_model, device),
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
        }
    }

    fn forward(&self, x: Tensor<3>, rope: &RotaryEncoding) -> Tensor<3> {
        let [batch, length, d_model] = x.dims();
        let d_head = d_model / self.n_heads;
        let heads = |linear: &Linear, count: usize| {
            let projected = linear.forward(x.clone());
            projected
                .reshape([batch, length, count, d_head])
                .swap_dims(1, 2)
        };
        let query = rope.forward(heads(&self.query, self.n_heads));
        let key = self.repeated(rope.forward(heads(&self.key, self.n_kv_heads)));
        let value = self.repeated(heads(&self.value, self.n_kv_heads));
        let scores = query.matmul(key.transpose()) / (d_head as f64).sqrt();
        let mask = generate_autoregressive_mask(batch, length, &x.device()).unsqueeze_dim::<4>(1);
        let weights = softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 3);
        let context = weights.matmul(value).swap_dims(1, 2);
        self.output
            .forward(context.reshape([batch, length, d_model]))
    }

    /// Give each query head its key or value head: neighbouring heads share one.
    fn repeated(&self, heads: Tensor<4>) -> Tensor<4> {
        let [batch, count, length, d_head] = heads.dims();
        let group = self.n_heads / count;
        heads.unsqueeze_dim::<5>(2).repeat_dim(2, group).reshape([
            batch,
            self.n_heads,
            length,
            d_head,
        ])
    }
}

impl Block {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let feed_forward = FeedForward {
            swiglu: SwiGluConfig::new(config.d_model, config.d_ff).init(device),
            down: linear(config.d_ff, config.d_model, device),
        };
        Self {
            attention_norm: config.norm(device),
            attention: GroupedAttention::new(config, device),
            feed_forward_norm: config.norm(device),
            feed_forward,
        }
    }

    fn forward(&self, x: Tensor<3>, rope: &RotaryEncoding) -> Tensor<3> {
        let normed = self.attention_norm.forward(x.clone());
        let x = x + self.attention.forward(normed, rope);
        let gated = self
            .feed_forward
            .swiglu
            .forward(self.feed_forward_norm.forward(x.clone()));
        x + self.feed_forward.down.forward(gated)
    }
}

impl LlamaConfig {
    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.d_model)
            .with_epsilon(self.norm_eps)
            .init(device)
    }
}

impl Llama {
    /// Return the logits of the token after each token.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(tokens);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, &self.rope));
        self.head.forward(self.norm.forward(x))
    }
}

impl Example for Llama {
    type Config = LlamaConfig;

    fn new(config: &LlamaConfig, device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(config.vocab_size, config.d_model).init(device),
            blocks: (0..config.n_layers)
                .map(|_| Block::new(config, device))
                .collect(),
            norm: config.norm(device),
            head: linear(config.d_model, config.vocab_size, device),
            rope: RotaryEncodingConfig::new(config.max_positions, config.d_model / config.n_heads)
                .with_theta(config.rope_theta)
                .init(device),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        vec![("logits", self.forward(inputs.int("tokens")).into_data())]
    }
}
