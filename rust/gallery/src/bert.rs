//! BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019) on Burn's own `TransformerEncoder`.

use burn::config::Config;
use burn::module::Module;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::run::{Example, Inputs, Outputs};

#[derive(Config, Debug)]
pub struct BertConfig {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub n_heads: usize,
    pub n_layers: usize,
    pub max_positions: usize,
    #[config(default = 2)]
    pub token_types: usize,
    #[config(default = 1e-12)]
    pub norm_eps: f64,
    /// The first position: RoBERTa counts from its padding index plus one.
    #[config(default = 0)]
    pub first_position: usize,
}

#[derive(Module, Debug)]
pub struct Embeddings {
    word: Embedding,
    position: Embedding,
    token_type: Embedding,
    norm: LayerNorm,
    first_position: usize,
}

/// The encoder with the pooler over the first token.
#[derive(Module, Debug)]
pub struct Bert {
    embeddings: Embeddings,
    encoder: TransformerEncoder,
    pooler: Linear,
}

/// The encoder with the head that predicts masked tokens; the head's matrix is the transposed word embedding.
#[derive(Module, Debug)]
pub struct Roberta {
    embeddings: Embeddings,
    encoder: TransformerEncoder,
    head: MaskedHead,
}

#[derive(Module, Debug)]
pub struct MaskedHead {
    dense: Linear,
    norm: LayerNorm,
    output: Linear,
}

impl BertConfig {
    fn embeddings(&self, device: &Device) -> Embeddings {
        Embeddings {
            word: EmbeddingConfig::new(self.vocab_size, self.d_model).init(device),
            position: EmbeddingConfig::new(self.max_positions, self.d_model).init(device),
            token_type: EmbeddingConfig::new(self.token_types, self.d_model).init(device),
            norm: self.norm(device),
            first_position: self.first_position,
        }
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.d_model)
            .with_epsilon(self.norm_eps)
            .init(device)
    }

    fn encoder(&self, device: &Device) -> TransformerEncoder {
        TransformerEncoderConfig::new(self.d_model, self.d_ff, self.n_heads, self.n_layers)
            .with_layer_norm_eps(self.norm_eps)
            .init(device)
    }
}

impl Embeddings {
    fn forward(&self, tokens: Tensor<2, Int>, types: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let first = self.first_position as i64;
        let positions = Tensor::arange(first..first + length as i64, &tokens.device());
        let x = self.word.forward(tokens) + self.token_type.forward(types);
        self.norm
            .forward(x + self.position.forward(positions.unsqueeze()))
    }
}

fn encoded(encoder: &TransformerEncoder, x: Tensor<3>, padding: Tensor<2, Bool>) -> Tensor<3> {
    encoder.forward(TransformerEncoderInput::new(x).mask_pad(padding))
}

impl Bert {
    /// Return the hidden states and the pooled first token.
    pub fn forward(
        &self,
        tokens: Tensor<2, Int>,
        types: Tensor<2, Int>,
        padding: Tensor<2, Bool>,
    ) -> (Tensor<3>, Tensor<2>) {
        let hidden = encoded(
            &self.encoder,
            self.embeddings.forward(tokens, types),
            padding,
        );
        let first = hidden.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
        (hidden, self.pooler.forward(first).tanh())
    }
}

impl Roberta {
    /// Return the logits of each token.
    pub fn forward(&self, tokens: Tensor<2, Int>, padding: Tensor<2, Bool>) -> Tensor<3> {
        let types = tokens.zeros_like();
        let hidden = encoded(
            &self.encoder,
            self.embeddings.forward(tokens, types),
            padding,
        );
        let x = gelu(self.head.dense.forward(hidden));
        self.head.output.forward(self.head.norm.forward(x))
    }
}

impl Example for Bert {
    type Config = BertConfig;

    fn new(config: &BertConfig, device: &Device) -> Self {
        Self {
            embeddings: config.embeddings(device),
            encoder: config.encoder(device),
            pooler: LinearConfig::new(config.d_model, config.d_model).init(device),
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        let (hidden, pooled) = self.forward(
            inputs.int("tokens"),
            inputs.int("types"),
            inputs.padding("mask"),
        );
        vec![
            ("hidden", hidden.into_data()),
            ("pooled", pooled.into_data()),
        ]
    }
}

impl Example for Roberta {
    type Config = BertConfig;

    fn new(config: &BertConfig, device: &Device) -> Self {
        let head = MaskedHead {
            dense: LinearConfig::new(config.d_model, config.d_model).init(device),
            norm: config.norm(device),
            output: LinearConfig::new(config.d_model, config.vocab_size).init(device),
        };
        Self {
            embeddings: config.embeddings(device),
            encoder: config.encoder(device),
            head,
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        let logits = self.forward(inputs.int("tokens"), inputs.padding("mask"));
        vec![("logits", logits.into_data())]
    }
}
