//! Burn's own recorders, for those who write record files: loads a file into a module, prints what it then holds, and
//! saves it again.
//!
//! `burn-records KIND PRECISION FILE OUT` with KIND one of mpk, mpk.gz, bin, bin.gz, json, json.gz and PRECISION one of
//! full, half, double; both paths without their extension. One JSON line per parameter: path, id, shape, values (F64).

use std::path::PathBuf;

use burn::backend::NdArray;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, Lstm, LstmConfig, Relu};
use burn::prelude::*;
use burn::record::*;
use serde_json::json;

type B = NdArray<f32>;

#[derive(Module, Debug)]
enum Part<B: Backend> {
    Dense(Linear<B>),
    Norm(BatchNorm<B>),
}

#[derive(Module, Debug)]
struct Mixed<B: Backend> {
    conv: Conv2d<B>,
    act: Relu,
    count: usize,
    sizes: [usize; 2],
    layers: Vec<Linear<B>>,
    maybe: Option<Linear<B>>,
    none: Option<Linear<B>>,
    part: Part<B>,
    parts: Vec<Part<B>>,
    mask: Param<Tensor<B, 1, Bool>>,
    ids: Param<Tensor<B, 1, Int>>,
    lstm: Lstm<B>,
    tail: Param<Tensor<B, 2>>,
}

fn mixed(device: &Device<B>) -> Mixed<B> {
    let mask = Tensor::from_bool(TensorData::from([true, false, true]), device);
    Mixed {
        conv: Conv2dConfig::new([2, 3], [2, 2]).init(device),
        act: Relu::new(),
        count: 3,
        sizes: [1, 2],
        layers: vec![
            LinearConfig::new(3, 4).init(device),
            LinearConfig::new(4, 2).with_bias(false).init(device),
        ],
        maybe: Some(LinearConfig::new(2, 2).init(device)),
        none: None,
        part: Part::Norm(BatchNormConfig::new(2).init(device)),
        parts: vec![Part::Dense(LinearConfig::new(2, 1).init(device))],
        mask: Param::initialized(ParamId::new(), mask),
        ids: Param::initialized(ParamId::new(), Tensor::from_ints([1, 2, 3], device)),
        lstm: LstmConfig::new(2, 3, true).init(device),
        tail: Param::initialized(ParamId::new(), Tensor::zeros([2, 2], device)),
    }
}

struct Printer {
    path: Vec<String>,
}

impl Printer {
    fn print(&self, id: ParamId, data: TensorData) {
        let values: Vec<f64> = data.clone().convert::<f64>().to_vec().unwrap();
        let shape = data.shape.to_vec();
        println!(
            "{}",
            json!({"path": self.path.join("."), "id": id.to_string(), "shape": shape, "values": values})
        );
    }
}

impl ModuleVisitor<B> for Printer {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.print(param.id, param.val().into_data());
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.print(param.id, param.val().into_data());
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.print(param.id, param.val().int().into_data());
    }
}

fn run<S: PrecisionSettings + 'static>(kind: &str, file: &str, out: &str) {
    let device = Device::<B>::default();
    let model = mixed(&device);
    macro_rules! with {
        ($recorder:ident) => {{
            let recorder = $recorder::<S>::new();
            let loaded = model
                .load_file(PathBuf::from(file), &recorder, &device)
                .expect("load");
            loaded
                .clone()
                .save_file(PathBuf::from(out), &recorder)
                .expect("save");
            loaded
        }};
    }
    let loaded = match kind {
        "mpk" => with!(NamedMpkFileRecorder),
        "mpk.gz" => with!(NamedMpkGzFileRecorder),
        "bin" => with!(BinFileRecorder),
        "bin.gz" => with!(BinGzFileRecorder),
        "json" => with!(PrettyJsonFileRecorder),
        "json.gz" => with!(JsonGzFileRecorder),
        _ => panic!("no such kind: {kind}"),
    };
    loaded.visit(&mut Printer { path: vec![] });
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, kind, precision, file, out] = arguments.as_slice() else {
        panic!("usage: burn-records KIND PRECISION FILE OUT");
    };
    match precision.as_str() {
        "full" => run::<FullPrecisionSettings>(kind, file, out),
        "half" => run::<HalfPrecisionSettings>(kind, file, out),
        "double" => run::<DoublePrecisionSettings>(kind, file, out),
        _ => panic!("no such precision: {precision}"),
    }
}
