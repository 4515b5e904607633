//! T5 (Raffel et al. 2019) and its versions 1.1: relative positions, no scaling, norms without mean.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{gelu_approximate, relu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct T5Config {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_head: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_layers: usize,
    pub num_buckets: usize,
    pub max_distance: usize,
    /// Versions 1.1 gate the feed-forward and have a head of their own.
    pub gated: bool,
}

#[derive(Module, Debug)]
pub struct T5 {
    embedding: Embedding,
    encoder: Encoder,
    decoder: Decoder,
    /// Absent where the embedding serves as the head.
    head: Option<Linear>,
}

#[derive(Module, Debug)]
pub struct Encoder {
    position_bias: PositionBias,
    blocks: Vec<EncoderBlock>,
    norm: RmsNorm,
}

#[derive(Module, Debug)]
pub struct Decoder {
    position_bias: PositionBias,
    blocks: Vec<DecoderBlock>,
    norm: RmsNorm,
}

/// What each head adds to its scores, by the distance between query and key.
#[derive(Module, Debug)]
pub struct PositionBias {
    buckets: Embedding,
    max_distance: usize,
    both_ways: bool,
}

#[derive(Module, Debug)]
pub struct EncoderBlock {
    attention: Attention,
    attention_norm: RmsNorm,
    feed_forward: FeedForward,
    feed_forward_norm: RmsNorm,
}

#[derive(Module, Debug)]
pub struct DecoderBlock {
    attention: Attention,
    attention_norm: RmsNorm,
    cross_attention: Attention,
    cross_attention_norm: RmsNorm,
    feed_forward: FeedForward,
    feed_forward_norm: RmsNorm,
}

#[derive(Module, Debug)]
pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    n_heads: usize,
}

#[derive(Module, Debug)]
pub enum FeedForward {
    Plain(PlainFeedForward),
    Gated(GatedFeedForward),
}

#[derive(Module, Debug)]
pub struct PlainFeedForward {
    inner: Linear,
    outer: Linear,
}

#[derive(Module, Debug)]
pub struct GatedFeedForward {
    gate: Linear,
    inner: Linear,
    outer: Linear,
}

impl T5Config {
    fn linear(&self, d_input: usize, d_output: usize, device: &Device) -> Linear {
        LinearConfig::new(d_input, d_output)
            .with_bias(false)
            .init(device)
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.d_model)
            .with_epsilon(1e-6)
            .init(device)
    }

    fn position_bias(&self, both_ways: bool, device: &Device) -> PositionBias {
        PositionBias {
            buckets: EmbeddingConfig::new(self.num_buckets, self.n_heads).init(device),
            max_distance: self.max_distance,
            both_ways,
        }
    }

    fn attention(&self, device: &Device) -> Attention {
        let d_inner = self.n_heads * self.d_head;
        Attention {
            query: self.linear(self.d_model, d_inner, device),
            key: self.linear(self.d_model, d_inner, device),
            value: self.linear(self.d_model, d_inner, device),
            output: self.linear(d_inner, self.d_model, device),
            n_heads: self.n_heads,
        }
    }

    fn feed_forward(&self, device: &Device) -> FeedForward {
        let inner = self.linear(self.d_model, self.d_ff, device);
        let outer = self.linear(self.d_ff, self.d_model, device);
        if self.gated {
            let gate = self.linear(self.d_model, self.d_ff, device);
            FeedForward::Gated(GatedFeedForward { gate, inner, outer })
        } else {
            FeedForward::Plain(PlainFeedForward { inner, outer })
        }
    }

    fn encoder_block(&self, device: &Device) -> EncoderBlock {
        EncoderBlock {
            attention: self.attention(device),
            attention_norm: self.norm(device),
            feed_forward: self.feed_forward(device),
            feed_forward_norm: self.norm(device),
        }
    }

    fn decoder_block(&self, device: &Device) -> DecoderBlock {
        DecoderBlock {
            attention: self.attention(device),
            attention_norm: self.norm(device),
            cross_attention: self.attention(device),
            cross_attention_norm: self.norm(device),
            feed_forward: self.feed_forward(device),
            feed_forward_norm: self.norm(device),
        }
    }
}

impl PositionBias {
    /// Return the bias `[1, heads, length, length]`.
    fn forward(&self, length: usize, device: &Device) -> Tensor<4> {
        let length = length as i64;
        let buckets: Vec<i64> = (0..length)
            .flat_map(|query| (0..length).map(move |key| key - query))
            .map(|distance| self.bucket(distance))
            .collect();
        let ids = Tensor::<1, Int>::from_data(buckets.as_slice(), device)
            .reshape([length as usize, length as usize]);
        self.buckets
            .forward(ids)
            .permute([2, 0, 1])
            .unsqueeze_dim::<4>(0)
    }

    /// Return the bucket of a distance: one for each small distance, logarithmically wide ones further out.
    fn bucket(&self, distance: i64) -> i64 {
        let mut count = self.buckets.weight.dims()[0] as i64;
        let mut bucket = 0;
        let distance = if self.both_ways {
            count /= 2;
            bucket = if distance > 0 { count } else { 0 };
            distance.abs()
        } else {
            (-distance).max(0)
        };
        let exact = count / 2;
        if distance < exact {
            return bucket + distance;
        }
        let ratio =
            (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let far = exact + (ratio * (count - exact) as f32) as i64;
        bucket + far.min(count - 1)
    }
}

impl Attention {
    fn forward(&self, x: Tensor<3>, context: Tensor<3>, bias: Option<Tensor<4>>) -> Tensor<3> {
        let heads = |linear: &Linear, x: Tensor<3>| {
            let [batch, length, _] = x.dims();
            let projected = linear.forward(x);
            let d_head = projected.dims()[2] / self.n_heads;
            projected
                .reshape([batch, length, self.n_heads, d_head])
                .swap_dims(1, 2)
        };
        let query = heads(&self.query, x);
        let key = heads(&self.key, context.clone());
        let value = heads(&self.value, context);
        let mut scores = query.matmul(key.transpose());
        if let Some(bias) = bias {
            scores = scores + bias;
        }
        let out = softmax(scores, 3).matmul(value).swap_dims(1, 2);
        self.output.forward(out.flatten::<3>(2, 3))
    }
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Plain(layer) => layer.outer.forward(relu(layer.inner.forward(x))),
            Self::Gated(layer) => {
                let gate = gelu_approximate(layer.gate.forward(x.clone()));
                layer.outer.forward(gate * layer.inner.forward(x))
            }
        }
    }
}

impl Encoder {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let bias = self.position_bias.forward(x.dims()[1], &x.device());
        let x = self.blocks.iter().fold(x, |x, block| {
            let y = block.attention_norm.forward(x.clone());
            let x = x + block.attention.forward(y.clone(), y, Some(bias.clone()));
            let y = block.feed_forward_norm.forward(x.clone());
            x + block.feed_forward.forward(y)
        });
        self.norm.forward(x)
    }
}

impl Decoder {
    fn forward(&self, x: Tensor<3>, encoded: Tensor<3>) -> Tensor<3> {
        let [_, length, _] = x.dims();
        let future = Tensor::<4, Bool>::tril_mask([1, 1, length, length], 0, &x.device());
        let bias = self.position_bias.forward(length, &x.device());
        let bias = bias.mask_fill(future, f32::NEG_INFINITY);
        let x = self.blocks.iter().fold(x, |x, block| {
            let y = block.attention_norm.forward(x.clone());
            let x = x + block.attention.forward(y.clone(), y, Some(bias.clone()));
            let y = block.cross_attention_norm.forward(x.clone());
            let x = x + block.cross_attention.forward(y, encoded.clone(), None);
            let y = block.feed_forward_norm.forward(x.clone());
            x + block.feed_forward.forward(y)
        });
        self.norm.forward(x)
    }
}

impl T5 {
    /// Return the logits of the token after each decoder token.
    pub fn forward(&self, tokens: Tensor<2, Int>, decoder_tokens: Tensor<2, Int>) -> Tensor<3> {
        let encoded = self.encoder.forward(self.embedding.forward(tokens));
        let x = self.embedding.forward(decoder_tokens);
        let x = self.decoder.forward(x, encoded);
        match &self.head {
            Some(head) => head.forward(x),
            None => {
                let scale = (x.dims()[2] as f64).sqrt();
                let vocabulary = self.embedding.weight.val().transpose();
                (x / scale).matmul(vocabulary.unsqueeze())
            }
        }
    }
}

impl Example for T5 {
    type Config = T5Config;

    fn new(config: &T5Config, device: &Device) -> Self {
        let layers = 0..config.n_layers;
        Self {
            embedding: EmbeddingConfig::new(config.vocab_size, config.d_model).init(device),
            encoder: Encoder {
                position_bias: config.position_bias(true, device),
                blocks: layers
                    .clone()
                    .map(|_| config.encoder_block(device))
                    .collect(),
                norm: config.norm(device),
            },
            decoder: Decoder {
                position_bias: config.position_bias(false, device),
                blocks: layers.map(|_| config.decoder_block(device)).collect(),
                norm: config.norm(device),
            },
            head: config
                .gated
                .then(|| config.linear(config.d_model, config.vocab_size, device)),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        let logits = self.forward(inputs.int("tokens"), inputs.int("decoder_tokens"));
        vec![("logits", logits.into_data())]
    }
}
