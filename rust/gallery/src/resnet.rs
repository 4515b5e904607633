//! ResNet (He et al. 2015) with basic or bottleneck blocks, as torchvision computes it.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::run::{Example, Inputs, Outputs};

/// The widths of the four stages follow from the first.
#[derive(Config, Debug)]
pub struct ResNetConfig {
    pub depths: Vec<usize>,
    pub num_classes: usize,
    #[config(default = false)]
    pub bottleneck: bool,
    #[config(default = 64)]
    pub width: usize,
}

#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    stem_norm: BatchNorm,
    pool: MaxPool2d,
    stages: Vec<Stage>,
    head: Linear,
}

#[derive(Module, Debug)]
pub struct Stage {
    blocks: Vec<Block>,
}

/// The two forms of a residual block.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a Box is a module from Burn 0.23 on
pub enum Block {
    Basic(BasicBlock),
    Bottleneck(BottleneckBlock),
}

#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    downsample: Option<Downsample>,
}

#[derive(Module, Debug)]
pub struct BottleneckBlock {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    conv3: Conv2d,
    norm3: BatchNorm,
    downsample: Option<Downsample>,
}

/// The shortcut where the shape changes.
#[derive(Module, Debug)]
pub struct Downsample {
    conv: Conv2d,
    norm: BatchNorm,
}

fn conv(
    [input, output]: [usize; 2],
    kernel: usize,
    stride: usize,
    device: &Device,
) -> (Conv2d, BatchNorm) {
    let pad = kernel / 2;
    let conv = Conv2dConfig::new([input, output], [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .init(device);
    (conv, BatchNormConfig::new(output).init(device))
}

fn downsample(input: usize, output: usize, stride: usize, device: &Device) -> Option<Downsample> {
    (stride != 1 || input != output).then(|| {
        let (conv, norm) = conv([input, output], 1, stride, device);
        Downsample { conv, norm }
    })
}

fn shortcut(downsample: &Option<Downsample>, x: Tensor<4>) -> Tensor<4> {
    match downsample {
        Some(Downsample { conv, norm }) => norm.forward(conv.forward(x)),
        None => x,
    }
}

impl BasicBlock {
    fn new(input: usize, width: usize, stride: usize, device: &Device) -> Self {
        let (conv1, norm1) = conv([input, width], 3, stride, device);
        let (conv2, norm2) = conv([width, width], 3, 1, device);
        let downsample = downsample(input, width, stride, device);
        Self {
            conv1,
            norm1,
            conv2,
            norm2,
            downsample,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.norm1.forward(self.conv1.forward(x.clone())));
        let y = self.norm2.forward(self.conv2.forward(y));
        relu(y + shortcut(&self.downsample, x))
    }
}

impl BottleneckBlock {
    const EXPANSION: usize = 4;

    fn new(input: usize, width: usize, stride: usize, device: &Device) -> Self {
        let output = width * Self::EXPANSION;
        let (conv1, norm1) = conv([input, width], 1, 1, device);
        let (conv2, norm2) = conv([width, width], 3, stride, device);
        let (conv3, norm3) = conv([width, output], 1, 1, device);
        let downsample = downsample(input, output, stride, device);
        Self {
            conv1,
            norm1,
            conv2,
            norm2,
            conv3,
            norm3,
            downsample,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.norm1.forward(self.conv1.forward(x.clone())));
        let y = relu(self.norm2.forward(self.conv2.forward(y)));
        let y = self.norm3.forward(self.conv3.forward(y));
        relu(y + shortcut(&self.downsample, x))
    }
}

impl Block {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Basic(block) => block.forward(x),
            Self::Bottleneck(block) => block.forward(x),
        }
    }
}

impl ResNet {
    /// Return the logits of images `[batch, 3, height, width]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.stem_norm.forward(self.stem.forward(images)));
        let x = self.pool.forward(x);
        let blocks = self.stages.iter().flat_map(|stage| &stage.blocks);
        let x = blocks.fold(x, |x, block| block.forward(x));
        self.head.forward(x.mean_dims(&[2, 3]).flatten::<2>(1, 3))
    }
}

impl Example for ResNet {
    type Config = ResNetConfig;

    fn new(config: &ResNetConfig, device: &Device) -> Self {
        let (stem, stem_norm) = conv([3, config.width], 7, 2, device);
        let mut input = config.width;
        let mut stages = Vec::new();
        for (place, &depth) in config.depths.iter().enumerate() {
            let width = config.width << place;
            let mut blocks = Vec::new();
            for index in 0..depth {
                let stride = if place > 0 && index == 0 { 2 } else { 1 };
                if config.bottleneck {
                    let block = BottleneckBlock::new(input, width, stride, device);
                    blocks.push(Block::Bottleneck(block));
                    input = width * BottleneckBlock::EXPANSION;
                } else {
                    blocks.push(Block::Basic(BasicBlock::new(input, width, stride, device)));
                    input = width;
                }
            }
            stages.push(Stage { blocks });
        }
        let pool = MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init();
        let head = LinearConfig::new(input, config.num_classes).init(device);
        Self {
            stem,
            stem_norm,
            pool,
            stages,
            head,
        }
    }

    fn run(&self, inputs: &Inputs) -> Outputs {
        vec![("logits", self.forward(inputs.float("images")).into_data())]
    }
}
