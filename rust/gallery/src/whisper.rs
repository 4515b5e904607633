//! Whisper (Radford et al. 2022): audio into text. Keys have no bias; the text's logits come from its embedding.

use burn::config::Config;
use burn::module::{Initializer, Module, Param};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, PaddingConfig1d};
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct WhisperConfig {
    pub n_mels: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub audio_layers: usize,
    pub audio_positions: usize,
    pub text_layers: usize,
    pub text_positions: usize,
    pub vocab_size: usize,
}

#[derive(Module, Debug)]
pub struct Whisper {
    encoder: AudioEncoder,
    decoder: TextDecoder,
}

#[derive(Module, Debug)]
pub struct AudioEncoder {
    conv1: Conv1d,
    conv2: Conv1d,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
pub struct TextDecoder {
    token_embedding: Embedding,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

/// A block of either side; only the decoder's looks at the audio.
#[derive(Module, Debug)]
pub struct Block {
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    cross_attention: Option<MultiHeadAttention>,
    cross_attention_norm: Option<LayerNorm>,
    feed_forward: PositionWiseFeedForward,
    feed_forward_norm: LayerNorm,
}

impl WhisperConfig {
    fn block(&self, crossed: bool, device: &Device) -> Block {
        let attention = || {
            MultiHeadAttentionConfig::new(self.d_model, self.n_heads)
                .with_key_bias(false)
                .init(device)
        };
        let norm = || LayerNormConfig::new(self.d_model).init(device);
        Block {
            attention: attention(),
            attention_norm: norm(),
            cross_attention: crossed.then(attention),
            cross_attention_norm: crossed.then(norm),
            feed_forward: PositionWiseFeedForwardConfig::new(self.d_model, self.d_ff).init(device),
            feed_forward_norm: norm(),
        }
    }

    fn conv(&self, channels: usize, stride: usize, device: &Device) -> Conv1d {
        Conv1dConfig::new(channels, self.d_model, 3)
            .with_stride(stride)
            .with_padding(PaddingConfig1d::Explicit(1, 1))
            .init(device)
    }
}

impl Block {
    fn forward(
        &self,
        x: Tensor<3>,
        mask: Option<Tensor<3, Bool>>,
        audio: Option<&Tensor<3>>,
    ) -> Tensor<3> {
        let mut input = MhaInput::self_attn(self.attention_norm.forward(x.clone()));
        if let Some(mask) = mask {
            input = input.mask_attn(mask);
        }
        let mut x = x + self.attention.forward(input).context;
        if let (Some(attention), Some(norm), Some(audio)) =
            (&self.cross_attention, &self.cross_attention_norm, audio)
        {
            let query = norm.forward(x.clone());
            let input = MhaInput::new(query, audio.clone(), audio.clone());
            x = x + attention.forward(input).context;
        }
        let normed = self.feed_forward_norm.forward(x.clone());
        x + self.feed_forward.forward(normed)
    }
}

impl AudioEncoder {
    fn forward(&self, mels: Tensor<3>) -> Tensor<3> {
        let x = gelu(self.conv2.forward(gelu(self.conv1.forward(mels))));
        let x = x.swap_dims(1, 2) + self.positions.val().unsqueeze();
        let blocks = self.blocks.iter();
        self.norm
            .forward(blocks.fold(x, |x, block| block.forward(x, None, None)))
    }
}

impl TextDecoder {
    fn forward(&self, tokens: Tensor<2, Int>, audio: &Tensor<3>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let mask = generate_autoregressive_mask(batch, length, &tokens.device());
        let positions = self.positions.val().narrow(0, 0, length);
        let x = self.token_embedding.forward(tokens) + positions.unsqueeze();
        let x = self.blocks.iter().fold(x, |x, block| {
            block.forward(x, Some(mask.clone()), Some(audio))
        });
        let vocabulary = self.token_embedding.weight.val().transpose();
        self.norm.forward(x).matmul(vocabulary.unsqueeze())
    }
}

impl Whisper {
    /// Return the logits of the token after each token, given the audio's mel features.
    pub fn forward(&self, mels: Tensor<3>, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.decoder.forward(tokens, &self.encoder.forward(mels))
    }
}

impl Example for Whisper {
    type Config = WhisperConfig;

    fn new(config: &WhisperConfig, device: &Device) -> Self {
        let d_model = config.d_model;
        let blocks = |count, crossed| -> Vec<Block> {
            (0..count).map(|_| config.block(crossed, device)).collect()
        };
        let norm = || LayerNormConfig::new(d_model).init(device);
        Self {
            encoder: AudioEncoder {
                conv1: config.conv(config.n_mels, 1, device),
                conv2: config.conv(d_model, 2, device),
                positions: Initializer::Zeros.init([config.audio_positions, d_model], device),
                blocks: blocks(config.audio_layers, false),
                norm: norm(),
            },
            decoder: TextDecoder {
                token_embedding: EmbeddingConfig::new(config.vocab_size, d_model).init(device),
                positions: Initializer::Zeros.init([config.text_positions, d_model], device),
                blocks: blocks(config.text_layers, true),
                norm: norm(),
            },
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        let logits = self.forward(inputs.float("mels"), inputs.int("tokens"));
        vec![("logits", logits.into_data())]
    }
}
