//! GPT-2 (Radford et al. 2019) on Burn's attention and feed-forward modules.

use burn::config::Config;
use burn::module::Module;
use burn::nn::activation::ActivationConfig;
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct Gpt2Config {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_layers: usize,
    pub max_positions: usize,
}

/// The head's matrix is the transposed token embedding.
#[derive(Module, Debug)]
pub struct Gpt2 {
    token_embedding: Embedding,
    position_embedding: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
pub struct Block {
    norm_1: LayerNorm,
    attention: MultiHeadAttention,
    norm_2: LayerNorm,
    feed_forward: PositionWiseFeedForward,
}

impl Block {
    fn new(config: &Gpt2Config, device: &Device) -> Self {
        Self {
            norm_1: LayerNormConfig::new(config.d_model).init(device),
            attention: MultiHeadAttentionConfig::new(config.d_model, config.n_heads).init(device),
            norm_2: LayerNormConfig::new(config.d_model).init(device),
            feed_forward: PositionWiseFeedForwardConfig::new(config.d_model, config.d_ff)
                .with_activation(ActivationConfig::GeluApproximate)
                .init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, _] = x.dims();
        let mask = generate_autoregressive_mask(batch, length, &x.device());
        let input = MhaInput::self_attn(self.norm_1.forward(x.clone())).mask_attn(mask);
        let x = x + self.attention.forward(input).context;
        let y = self.feed_forward.forward(self.norm_2.forward(x.clone()));
        x + y
    }
}

impl Gpt2 {
    /// Return the logits of the token after each token.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let positions = Tensor::arange(0..length as i64, &tokens.device()).unsqueeze();
        let x = self.token_embedding.forward(tokens) + self.position_embedding.forward(positions);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.norm.forward(x))
    }
}

impl Example for Gpt2 {
    type Config = Gpt2Config;

    fn new(config: &Gpt2Config, device: &Device) -> Self {
        Self {
            token_embedding: EmbeddingConfig::new(config.vocab_size, config.d_model).init(device),
            position_embedding: EmbeddingConfig::new(config.max_positions, config.d_model)
                .init(device),
            blocks: (0..config.n_layers)
                .map(|_| Block::new(config, device))
                .collect(),
            norm: LayerNormConfig::new(config.d_model).init(device),
            head: LinearConfig::new(config.d_model, config.vocab_size)
                .with_bias(false)
                .init(device),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        vec![("logits", self.forward(inputs.int("tokens")).into_data())]
    }
}
