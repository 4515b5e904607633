//! The models by name. The table in README.md says the same to those who declare them elsewhere.

use burn::module::{Param, ParamId};
use burn::nn::activation::*;
use burn::nn::attention::*;
use burn::nn::conv::*;
#[cfg(not(feature = "since_0_21"))]
use burn::nn::gru::GruConfig;
use burn::nn::norm::*;
use burn::nn::transformer::*;
use burn::nn::*;
use burn::tensor::TensorData;

use crate::api::{self, AnyModule, DType, Device, cpu};
use crate::model::Model;
use crate::modules::*;
use crate::{quant, values};

/// Where a model is made, and which of its two sets of values the explicit parameters get.
pub struct Site<'a> {
    pub device: &'a Device,
    pub salt: u64,
}

macro_rules! parameter {
    ($name:ident, $type:ident, $tensor:ident) => {
        fn $name<const D: usize>(
            &self,
            path: &str,
            shape: [usize; D],
            dtype: DType,
        ) -> Param<api::$type<D>> {
            let tensor = api::$tensor(self.data(path, &shape, dtype), self.device);
            Param::initialized(ParamId::new(), tensor)
        }
    };
}

impl Site<'_> {
    parameter!(float, FloatTensor, float_tensor);
    parameter!(int, IntTensor, int_tensor);

    fn bool<const D: usize>(&self, path: &str, shape: [usize; D]) -> Param<api::BoolTensor<D>> {
        let data = self.data(path, &shape, api::BOOL);
        Param::initialized(ParamId::new(), api::bool_tensor(data, self.device))
    }

    fn data(&self, path: &str, shape: &[usize], dtype: DType) -> TensorData {
        let count = shape.iter().product();
        let bytes = values::bytes_of(dtype, count, values::seed_of(path, self.salt));
        TensorData::from_bytes_vec(bytes, shape.to_vec(), dtype)
    }
}

fn model<M: AnyModule + 'static>(module: M) -> Box<dyn Model> {
    Box::new(module)
}

/// Turns rows `name => expression` into the list of names and the function that builds one.
macro_rules! zoo {
    (|$site:ident, $d:ident| $($(#[$since:meta])* $name:ident => $module:expr;)*) => {
        pub const NAMES: &[&str] = &[$($(#[$since])* stringify!($name),)*];

        pub fn build(name: &str, $site: &Site) -> Option<Box<dyn Model>> {
            let $d = $site.device;
            match name {
                $($(#[$since])* stringify!($name) => Some(model($module)),)*
                _ => None,
            }
        }
    };
}

zoo! { |at, d|
    linear => LinearConfig::new(4, 3).init(d);
    linear_no_bias => LinearConfig::new(4, 3).with_bias(false).init(d);
    linear_col => LinearConfig::new(4, 3).with_layout(LinearLayout::Col).init(d);
    linear_col_square => LinearConfig::new(4, 4).with_layout(LinearLayout::Col).init(d);
    embedding => EmbeddingConfig::new(8, 4).init(d);
    conv1d => Conv1dConfig::new(2, 3, 3).init(d);
    conv1d_groups => Conv1dConfig::new(4, 6, 3).with_groups(2).with_bias(false).init(d);
    conv2d => Conv2dConfig::new([2, 3], [3, 2]).init(d);
    conv2d_groups => Conv2dConfig::new([4, 6], [3, 2]).with_groups(2).with_bias(false).init(d);
    conv3d => Conv3dConfig::new([2, 3], [3, 2, 1]).init(d);
    conv3d_groups => Conv3dConfig::new([4, 6], [3, 2, 1]).with_groups(2).with_bias(false).init(d);
    conv_transpose1d => ConvTranspose1dConfig::new([2, 3], 3).init(d);
    conv_transpose1d_groups =>
        ConvTranspose1dConfig::new([4, 6], 3).with_groups(2).with_bias(false).init(d);
    conv_transpose2d => ConvTranspose2dConfig::new([2, 3], [3, 2]).init(d);
    conv_transpose2d_groups =>
        ConvTranspose2dConfig::new([4, 6], [3, 2]).with_groups(2).with_bias(false).init(d);
    conv_transpose3d => ConvTranspose3dConfig::new([2, 3], [3, 2, 1]).init(d);
    conv_transpose3d_groups =>
        ConvTranspose3dConfig::new([4, 6], [3, 2, 1]).with_groups(2).with_bias(false).init(d);
    deform_conv2d => DeformConv2dConfig::new([2, 4], [3, 3]).init(d);
    deform_conv2d_groups => DeformConv2dConfig::new([4, 6], [3, 3])
        .with_weight_groups(2)
        .with_offset_groups(2)
        .with_bias(false)
        .init(d);
    batch_norm => BatchNormConfig::new(6).init(d);
    layer_norm => LayerNormConfig::new(5).init(d);
    #[cfg(feature = "since_0_20")]
    layer_norm_no_bias => LayerNormConfig::new(5).with_bias(false).init(d);
    group_norm => GroupNormConfig::new(2, 4).init(d);
    group_norm_no_affine => GroupNormConfig::new(2, 4).with_affine(false).init(d);
    instance_norm => InstanceNormConfig::new(3).init(d);
    instance_norm_no_affine => InstanceNormConfig::new(3).with_affine(false).init(d);
    rms_norm => RmsNormConfig::new(7).init(d);
    prelu => PReluConfig::new().init(d);
    prelu_many => PReluConfig::new().with_num_parameters(4).with_alpha(0.1).init(d);
    swiglu => SwiGluConfig::new(3, 5).init(d);
    swiglu_bias => SwiGluConfig::new(3, 5).with_bias(true).init(d);
    multi_head_attention => MultiHeadAttentionConfig::new(8, 2).init(d);
    #[cfg(feature = "since_0_22")]
    multi_head_attention_some_bias => MultiHeadAttentionConfig::new(8, 2)
        .with_key_bias(false)
        .with_output_bias(false)
        .init(d);
    #[cfg(feature = "since_0_20")]
    cross_attention => CrossAttentionConfig::new(8, 6, 4, 2, 3).init(d);
    position_wise_feed_forward => PositionWiseFeedForwardConfig::new(4, 8).init(d);
    #[cfg(feature = "since_0_21")]
    position_wise_feed_forward_prelu => PositionWiseFeedForwardConfig::new(4, 8)
        .with_activation(ActivationConfig::PRelu(PReluConfig::new()))
        .init(d);
    transformer_encoder => TransformerEncoderConfig::new(4, 8, 2, 2).init(d);
    transformer_encoder_norm_first =>
        TransformerEncoderConfig::new(4, 8, 2, 1).with_norm_first(true).init(d);
    #[cfg(feature = "since_0_21")]
    transformer_encoder_layer =>
        TransformerEncoderLayer::new(&TransformerEncoderConfig::new(4, 8, 2, 1), d);
    transformer_decoder => TransformerDecoderConfig::new(4, 8, 2, 2).init(d);
    #[cfg(feature = "since_0_21")]
    transformer_decoder_layer =>
        TransformerDecoderLayer::new(&TransformerDecoderConfig::new(4, 8, 2, 1), d);
    gate_controller =>
        GateController::new(2, 3, true, Initializer::XavierNormal { gain: 1.0 }, d);
    #[cfg(feature = "since_0_21")]
    rnn => RnnConfig::new(2, 3, true).init(d);
    #[cfg(feature = "since_0_21")]
    rnn_no_bias => RnnConfig::new(2, 3, false).init(d);
    #[cfg(feature = "since_0_21")]
    bi_rnn => BiRnnConfig::new(2, 3, true).init(d);
    lstm => LstmConfig::new(2, 3, true).init(d);
    lstm_no_bias => LstmConfig::new(2, 3, false).init(d);
    #[cfg(feature = "since_0_20")]
    lstm_input_forget => LstmConfig::new(2, 3, true).with_input_forget(true).init(d);
    #[cfg(feature = "since_0_20")]
    lstm_prelu => LstmConfig::new(2, 3, true)
        .with_gate_activation(ActivationConfig::PRelu(PReluConfig::new()))
        .init(d);
    bi_lstm => BiLstmConfig::new(2, 3, true).init(d);
    gru => GruConfig::new(2, 3, true).init(d);
    gru_no_bias => GruConfig::new(2, 3, false).with_reset_after(false).init(d);
    #[cfg(feature = "since_0_21")]
    bi_gru => BiGruConfig::new(2, 3, true).init(d);
    activations => Activations { items: activations(d) };
    norms => Norms { items: norms(d) };

    basic => basic(d);
    nested => Nested {
        trunk: Branch {
            left: leaf(at),
            right: leaf(at),
            maybe_some: Some(LinearConfig::new(2, 2).with_bias(false).init(d)),
            maybe_none: None,
        },
        stack: linears(11, d),
        array: [LayerNormConfig::new(2).init(d), LayerNormConfig::new(3).init(d)],
        pair: (LinearConfig::new(2, 4).init(d), LayerNormConfig::new(4).init(d)),
        raw: vec![at.float("raw.0", [2], DType::F32), at.float("raw.1", [4], DType::F32)],
    };
    enums => Enums {
        head: Block::Dense(LinearConfig::new(3, 2).init(d)),
        blocks: vec![
            Block::Conv(Conv1dConfig::new(2, 3, 3).init(d)),
            Block::Norm(LayerNormConfig::new(4).init(d)),
            Block::Dense(LinearConfig::new(2, 2).with_bias(false).init(d)),
        ],
        tail: Block::Norm(LayerNormConfig::new(2).init(d)),
    };
    nested_enums => NestedEnums {
        first: Outer::Inner(Block::Dense(LinearConfig::new(3, 2).init(d))),
        rest: vec![
            Outer::Leaf(leaf(at)),
            Outer::Many(linears(2, d)),
            Outer::Scale(at.float("rest.2.Scale", [5], DType::F32)),
        ],
        maybe: Some(Outer::Inner(Block::Norm(LayerNormConfig::new(4).init(d)))),
    };
    #[cfg(feature = "since_0_20")]
    containers => Containers {
        grid: vec![linears(2, d), linears(1, d)],
        gaps: vec![
            Some(LayerNormConfig::new(2).init(d)),
            None,
            Some(LayerNormConfig::new(3).init(d)),
        ],
        maybe_list: Some(linears(1, d)),
        empty_list: vec![],
        triple: (LinearConfig::new(2, 3).init(d), leaf(at), LinearConfig::new(3, 4).init(d)),
        pairs: [2, 3].map(|n| (LinearConfig::new(n, 4).init(d), LayerNormConfig::new(n).init(d))),
        eleven: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|n| RmsNormConfig::new(n).init(d)),
    };
    names => Names {
        größe: LinearConfig::new(2, 2).init(d),
        r#type: at.float("r#type", [2], DType::F32),
        _hidden: at.float("_hidden", [3], DType::F32),
        CamelCase: at.float("CamelCase", [1], DType::F32),
    };
    scalars => Scalars {
        one: at.float("one", [1], DType::F32),
        zero_first: at.float("zero_first", [0, 3], DType::F32),
        zero_mid: at.float("zero_mid", [2, 0, 2], DType::F32),
        eight: at.float("eight", [1, 2, 1, 2, 1, 2, 1, 2], DType::F32),
        int_one: at.int("int_one", [1], DType::I64),
        zero_last: at.float("zero_last", [0], DType::F32),
    };
    bools => Bools {
        weight: at.float("weight", [3], DType::F32),
        mask: at.bool("mask", [3, 5]),
    };
    dtypes => dtypes(at, &[DType::U64, DType::U32, DType::U16, DType::U8]);
    dtypes_no_u16 => dtypes(at, &[DType::U64, DType::U32, DType::U8]);
    dtypes_signed => dtypes(at, &[]);
    empty => Empty { nothing: None };
    tied => tied(LinearConfig::new(4, 3).init(d));
    many => Layers { layers: linears(2500, d) };
    quantized => Quantized {
        values: quant::parameters(at, "values", [4, 32]),
        odd: quant::parameters(at, "odd", [3, 5]),
        small: quant::parameters(at, "small", [2, 8]),
    };
    #[cfg(feature = "since_0_22")]
    lora => burn::module::Module::apply_lora(basic(d), burn::module::Lora::new(2, 4.0));
    #[cfg(feature = "since_0_22")]
    parameterless => parameterless(d);
    #[cfg(feature = "since_0_23")]
    positional => Positional(
        LinearConfig::new(4, 3).init(d),
        Box::new(LayerNormConfig::new(3).init(d)),
    );

    #[cfg(feature = "forward")]
    fwd_linear => crate::forward::linear().init(d);
    #[cfg(feature = "forward")]
    fwd_conv1d => crate::forward::conv1d().init(d);
    #[cfg(feature = "forward")]
    fwd_conv2d => crate::forward::conv2d().init(d);
    #[cfg(feature = "forward")]
    fwd_conv_transpose2d => crate::forward::conv_transpose2d().init(d);
    #[cfg(feature = "forward")]
    fwd_batch_norm => crate::forward::batch_norm().init(d);
    #[cfg(feature = "forward")]
    fwd_layer_norm => crate::forward::layer_norm().init(d);
    #[cfg(feature = "forward")]
    fwd_group_norm => crate::forward::group_norm().init(d);
    #[cfg(feature = "forward")]
    fwd_rms_norm => crate::forward::rms_norm().init(d);
    #[cfg(feature = "forward")]
    fwd_embedding => crate::forward::embedding().init(d);
    #[cfg(feature = "forward")]
    fwd_mha => crate::forward::mha().init(d);
    #[cfg(feature = "forward")]
    fwd_transformer_encoder => crate::forward::transformer_encoder().init(d);
    #[cfg(feature = "forward")]
    fwd_transformer_decoder => crate::forward::transformer_decoder().init(d);
    #[cfg(feature = "forward")]
    fwd_lstm => crate::forward::lstm().init(d);
    #[cfg(feature = "forward")]
    fwd_gru => crate::forward::gru().init(d);
    #[cfg(feature = "forward")]
    fwd_bilstm => crate::forward::bilstm().init(d);
}

fn basic(d: &Device) -> cpu!(Basic) {
    Basic {
        linear: LinearConfig::new(4, 3).init(d),
        linear_nobias: LinearConfig::new(3, 5).with_bias(false).init(d),
        conv: Conv2dConfig::new([2, 3], [3, 3]).init(d),
        batch: BatchNormConfig::new(6).init(d),
        layer: LayerNormConfig::new(5).init(d),
        group: GroupNormConfig::new(2, 4).init(d),
        instance: InstanceNormConfig::new(3).init(d),
        rms: RmsNormConfig::new(7).init(d),
        embedding: EmbeddingConfig::new(8, 4).init(d),
        dropout: DropoutConfig::new(0.5).init(),
    }
}

fn linears(count: usize, d: &Device) -> Vec<cpu!(Linear)> {
    (0..count)
        .map(|_| LinearConfig::new(2, 3).init(d))
        .collect()
}

fn leaf(at: &Site) -> cpu!(Leaf) {
    Leaf {
        fc: LinearConfig::new(3, 2).init(at.device),
        scale: at.float("scale", [3], DType::F32),
    }
}

fn tied(linear: cpu!(Linear)) -> cpu!(Tied) {
    Tied {
        first: linear.clone(),
        second: linear,
    }
}

/// One parameter of each type the backend can hold, of the unsigned integers only those named: SafeTensors files of
/// Burn cannot hold U16, and 0.20 cannot load any.
fn dtypes(at: &Site, unsigned: &[DType]) -> cpu!(Dtypes) {
    let maybe = |path: &str, dtype: DType| {
        let named = unsigned.contains(&dtype);
        named.then(|| at.int(path, [5], dtype))
    };
    Dtypes {
        f64: at.float("f64", [5], DType::F64),
        f32: at.float("f32", [2, 3], DType::F32),
        f16: HALF.then(|| at.float("f16", [7], DType::F16)),
        bf16: HALF.then(|| at.float("bf16", [3, 3], DType::BF16)),
        i64: at.int("i64", [5], DType::I64),
        i32: at.int("i32", [2, 3], DType::I32),
        i16: at.int("i16", [5], DType::I16),
        i8: at.int("i8", [5], DType::I8),
        u64: maybe("u64", DType::U64),
        u32: maybe("u32", DType::U32),
        u16: maybe("u16", DType::U16),
        u8: maybe("u8", DType::U8),
        flag: at.bool("flag", [3, 3]),
    }
}

/// The ndarray backend has no half-precision floats.
const HALF: bool = cfg!(feature = "since_0_22");

/// Every variant of the enum, those without parameters too.
fn activations(d: &Device) -> Vec<cpu!(Activation)> {
    let configs = [
        ActivationConfig::Gelu,
        ActivationConfig::PRelu(PReluConfig::new().with_num_parameters(3)),
        ActivationConfig::Relu,
        ActivationConfig::LeakyRelu(LeakyReluConfig::new()),
        ActivationConfig::SwiGlu(SwiGluConfig::new(3, 5).with_bias(true)),
        ActivationConfig::Sigmoid,
        ActivationConfig::Tanh,
        ActivationConfig::HardSigmoid(HardSigmoidConfig::new()),
        ActivationConfig::SwiGlu(SwiGluConfig::new(2, 2)),
    ];
    configs.iter().map(|config| config.init(d)).collect()
}

fn norms(d: &Device) -> Vec<cpu!(Normalization)> {
    let configs = [
        NormalizationConfig::Batch(BatchNormConfig::new(2)),
        NormalizationConfig::Group(GroupNormConfig::new(2, 4)),
        NormalizationConfig::Instance(InstanceNormConfig::new(3)),
        NormalizationConfig::Layer(LayerNormConfig::new(4)),
        NormalizationConfig::Rms(RmsNormConfig::new(5)),
    ];
    configs.iter().map(|config| config.init(d)).collect()
}

#[cfg(feature = "since_0_22")]
fn parameterless(d: &Device) -> Parameterless {
    use burn::nn::interpolate::Interpolate2dConfig;
    use burn::nn::loss::{CrossEntropyLossConfig, HuberLossConfig};
    use burn::nn::pool::{AdaptiveAvgPool2dConfig, AvgPool1dConfig, MaxPool2dConfig};
    Parameterless {
        dropout: DropoutConfig::new(0.5).init(),
        noise: GaussianNoiseConfig::new(0.1).init(),
        identity: Identity::new(),
        gelu: Gelu::new(),
        leaky_relu: LeakyReluConfig::new().init(),
        rrelu: RReluConfig::new().init(),
        max_pool: MaxPool2dConfig::new([2, 2]).init(),
        avg_pool: AvgPool1dConfig::new(2).init(),
        adaptive: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
        interpolate: Interpolate2dConfig::new()
            .with_output_size(Some([4, 4]))
            .init(),
        unfold: Unfold4dConfig::new([2, 2]).init(),
        shuffle: PixelShuffleConfig::new(2).init(),
        local_response: LocalResponseNormConfig::new(3).init(),
        positions: PositionalEncodingConfig::new(4).init(d),
        rotary: RotaryEncodingConfig::new(8, 4).init(d),
        linear: LinearConfig::new(4, 3).init(d),
        cross_entropy: CrossEntropyLossConfig::new()
            .with_weights(Some(vec![0.5, 1.5]))
            .init(d),
        huber: HuberLossConfig::new(0.5).init(),
    }
}
