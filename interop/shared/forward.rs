//! Forward passes of small models, for those who check what a loaded weight means.

use std::collections::HashMap;
use std::path::Path;

use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};
use burn::nn::transformer::{
    TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoderConfig,
    TransformerEncoderInput,
};
use burn::nn::*;
use burn::tensor::{Int, Tensor, TensorData};
use serde_json::{Value, json};

use crate::api::{self, DType, Device};
use crate::model::Model;
use crate::stores::Options;

pub fn linear() -> LinearConfig {
    LinearConfig::new(5, 4)
}

pub fn conv1d() -> Conv1dConfig {
    Conv1dConfig::new(4, 6, 3)
        .with_stride(2)
        .with_groups(2)
        .with_padding(PaddingConfig1d::Explicit(1, 1))
}

pub fn conv2d() -> Conv2dConfig {
    Conv2dConfig::new([3, 4], [3, 2])
        .with_stride([2, 1])
        .with_padding(PaddingConfig2d::Explicit(1, 0, 1, 0))
}

pub fn conv_transpose2d() -> ConvTranspose2dConfig {
    ConvTranspose2dConfig::new([3, 4], [3, 2])
        .with_stride([2, 1])
        .with_padding([1, 0])
        .with_padding_out([1, 0])
}

pub fn batch_norm() -> BatchNormConfig {
    BatchNormConfig::new(6)
}

pub fn layer_norm() -> LayerNormConfig {
    LayerNormConfig::new(5)
}

pub fn group_norm() -> GroupNormConfig {
    GroupNormConfig::new(2, 6)
}

pub fn rms_norm() -> RmsNormConfig {
    RmsNormConfig::new(7)
}

pub fn embedding() -> EmbeddingConfig {
    EmbeddingConfig::new(10, 4)
}

pub fn mha() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0)
}

pub fn transformer_encoder() -> TransformerEncoderConfig {
    TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0)
}

pub fn transformer_decoder() -> TransformerDecoderConfig {
    TransformerDecoderConfig::new(8, 16, 2, 2).with_dropout(0.0)
}

pub fn lstm() -> LstmConfig {
    LstmConfig::new(5, 6, true)
}

pub fn gru() -> GruConfig {
    GruConfig::new(5, 6, true)
}

pub fn bilstm() -> BiLstmConfig {
    BiLstmConfig::new(5, 6, true)
}

/// The named tensors of the input file.
struct Inputs(HashMap<String, TensorData>);

impl Inputs {
    fn read(file: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
        let tensors = safetensors::SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
        let named = tensors.iter().map(|(name, view)| {
            let dtype = match view.dtype() {
                safetensors::Dtype::F32 => DType::F32,
                safetensors::Dtype::I64 => DType::I64,
                other => return Err(format!("{name}: an input is F32 or I64, not {other:?}")),
            };
            let data =
                TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype);
            Ok((name.to_owned(), data))
        });
        named.collect::<Result<_, _>>().map(Self)
    }

    fn data(&self, name: &str) -> TensorData {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("no input {name}"))
            .clone()
    }

    fn float<const D: usize>(&self, name: &str) -> Tensor<D> {
        api::float_tensor(self.data(name), &Device::default())
    }

    fn int<const D: usize>(&self, name: &str) -> Tensor<D, Int> {
        api::int_tensor(self.data(name), &Device::default())
    }
}

/// Loads the file into the model, without tolerance, and gives the model for inference.
fn loaded<M: api::AnyModule>(mut module: M, file: &Path) -> Result<M, String> {
    Model::load(&mut module, Options::default().store(file)?)?;
    Ok(module.freeze())
}

pub fn run(model: &str, file: &Path, inputs: &Path) -> Result<Value, String> {
    let inputs = Inputs::read(inputs)?;
    let d = &Device::default();
    macro_rules! pass {
        ($config:ident, |$module:ident| $output:expr) => {{
            let $module = loaded($config().init(d), file)?;
            $output.into_data()
        }};
    }
    let output = match model {
        "fwd_linear" => pass!(linear, |m| m.forward(inputs.float::<2>("x"))),
        "fwd_conv1d" => pass!(conv1d, |m| m.forward(inputs.float("x"))),
        "fwd_conv2d" => pass!(conv2d, |m| m.forward(inputs.float("x"))),
        "fwd_conv_transpose2d" => pass!(conv_transpose2d, |m| m.forward(inputs.float("x"))),
        "fwd_batch_norm" => pass!(batch_norm, |m| m.forward(inputs.float::<4>("x"))),
        "fwd_layer_norm" => pass!(layer_norm, |m| m.forward(inputs.float::<2>("x"))),
        "fwd_group_norm" => pass!(group_norm, |m| m.forward(inputs.float::<4>("x"))),
        "fwd_rms_norm" => pass!(rms_norm, |m| m.forward(inputs.float::<2>("x"))),
        "fwd_embedding" => pass!(embedding, |m| m.forward(inputs.int("x"))),
        "fwd_mha" => pass!(mha, |m| {
            let (query, key, value) = (
                inputs.float("x"),
                inputs.float("key"),
                inputs.float("value"),
            );
            m.forward(MhaInput::new(query, key, value)).context
        }),
        "fwd_transformer_encoder" => pass!(transformer_encoder, |m| {
            m.forward(TransformerEncoderInput::new(inputs.float("x")))
        }),
        "fwd_transformer_decoder" => pass!(transformer_decoder, |m| {
            m.forward(TransformerDecoderInput::new(
                inputs.float("x"),
                inputs.float("memory"),
            ))
        }),
        "fwd_lstm" => pass!(lstm, |m| m.forward(inputs.float("x"), None).0),
        "fwd_gru" => pass!(gru, |m| m.forward(inputs.float("x"), None)),
        "fwd_bilstm" => pass!(bilstm, |m| m.forward(inputs.float("x"), None).0),
        other => return Err(format!("no forward pass for {other}")),
    };
    let shape = output.shape().to_vec();
    let values = output
        .try_to_vec::<f32>()
        .map_err(|error| format!("{error:?}"))?;
    Ok(json!({"shape": shape, "values": values}))
}
