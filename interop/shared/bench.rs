//! The model of Burn's own store benches: saving and loading, with and without touching every page.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::nn::LinearConfig;
use burn::tensor::{Bytes, TensorData};
use burn_store::{BurnpackStore, ModuleSnapshot, SafetensorsStore};
use serde_json::{Map, Value, json};

use crate::api::{Device, cpu};
use crate::modules::Layers;

const PAGE: usize = 4096;

type Net = cpu!(Layers);
type Case = (&'static str, fn(&mut Bench) -> f64);

/// 20 Linear layers, 1024 → 2048 and nineteen of 2048 → 2048: 327,319,552 bytes of parameters.
fn fresh() -> Net {
    let device = Device::default();
    let layers = (0..20).map(|index| {
        let inputs = if index == 0 { 1024 } else { 2048 };
        LinearConfig::new(inputs, 2048).init(&device)
    });
    Layers {
        layers: layers.collect(),
    }
}

struct Bench {
    folder: PathBuf,
    /// A model with values, made when a case first saves it.
    source: Option<Net>,
    /// The `.bpk` file in memory for the whole run of the program.
    image: Option<&'static [u8]>,
}

impl Bench {
    fn source(&mut self) -> &Net {
        self.source.get_or_insert_with(|| {
            let net = fresh();
            touch(net.clone());
            net
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The file that the loading cases read, written by Burn when it is not there yet.
    fn input(&mut self, name: &str) -> PathBuf {
        let file = self.file(name);
        if !file.exists() {
            save(self.source(), &file);
        }
        file
    }

    fn image(&mut self) -> &'static [u8] {
        if self.image.is_none() {
            let bytes = std::fs::read(self.input("model.bpk")).unwrap();
            self.image = Some(bytes.leak());
        }
        self.image.unwrap()
    }

    fn save(&mut self, name: &str) -> f64 {
        let file = self.file(name);
        let net = self.source();
        let start = Instant::now();
        save(net, &file);
        start.elapsed().as_secs_f64()
    }
}

fn save(net: &Net, file: &Path) {
    if file.extension().is_some_and(|suffix| suffix == "bpk") {
        let mut store = BurnpackStore::from_file(file).overwrite(true);
        net.save_into(&mut store).unwrap();
    } else {
        let mut store = SafetensorsStore::from_file(file).overwrite(true);
        net.save_into(&mut store).unwrap();
    }
}

/// Reads one value per page of every tensor and gives back all of them: a program that loads a model keeps it.
///
/// The module itself is given up, so that Burn need not copy what it lends.
fn touch(net: Net) -> Vec<TensorData> {
    let parameters = net.layers.into_iter().flat_map(|layer| {
        [
            layer.weight.into_value().into_data(),
            layer.bias.unwrap().into_value().into_data(),
        ]
    });
    let tensors: Vec<_> = parameters.collect();
    black_box(tensors.iter().map(touched).sum::<f64>());
    tensors
}

fn touched(data: &TensorData) -> f64 {
    let values = data.as_slice::<f32>().unwrap();
    values.iter().step_by(PAGE / 4).map(|v| f64::from(*v)).sum()
}

/// Loads into an existing model; with `read`, then reads every page. The model is made before the clock starts.
macro_rules! loading {
    ($read:expr, $input:ident = $prepared:expr => $store:expr) => {{
        let $input = $prepared;
        let mut net = fresh();
        let start = Instant::now();
        net.load_from(&mut $store).unwrap();
        let tensors = if $read { touch(net) } else { Vec::new() };
        let taken = start.elapsed().as_secs_f64();
        drop(tensors);
        taken
    }};
}

fn load_bpk(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, file = bench.input("model.bpk") => BurnpackStore::from_file(&file))
}

/// The bytes are copied into a vector the store owns.
fn load_bytes(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, image = bench.image() => {
        BurnpackStore::from_bytes(Some(Bytes::from_bytes_vec(image.to_vec())))
    })
}

fn load_safetensors(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, file = bench.input("model.safetensors") => {
        SafetensorsStore::from_file(&file)
    })
}

#[cfg(feature = "since_0_20")]
fn load_static(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, image = bench.image() => BurnpackStore::from_static(image))
}

/// The mapped file without a copy in 0.20 and 0.21; from 0.22 on a file is never copied, and this is bytes shared
/// with the caller.
#[cfg(all(feature = "since_0_20", not(feature = "since_0_22")))]
fn load_zero_copy(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, file = bench.input("model.bpk") => {
        BurnpackStore::from_file(&file).zero_copy(true)
    })
}

#[cfg(feature = "since_0_22")]
fn load_zero_copy(bench: &mut Bench, read: bool) -> f64 {
    loading!(read, shared = Bytes::from_bytes_vec(bench.image().to_vec()).shared() => {
        BurnpackStore::from_bytes(Some(shared.clone()))
    })
}

const CASES: &[Case] = &[
    ("save_bpk", |bench| bench.save("saved.bpk")),
    ("load_bpk", |bench| load_bpk(bench, false)),
    ("read_bpk", |bench| load_bpk(bench, true)),
    ("load_bytes", |bench| load_bytes(bench, false)),
    ("read_bytes", |bench| load_bytes(bench, true)),
    #[cfg(feature = "since_0_20")]
    ("load_static", |bench| load_static(bench, false)),
    #[cfg(feature = "since_0_20")]
    ("read_static", |bench| load_static(bench, true)),
    #[cfg(feature = "since_0_20")]
    ("load_zero_copy", |bench| load_zero_copy(bench, false)),
    #[cfg(feature = "since_0_20")]
    ("read_zero_copy", |bench| load_zero_copy(bench, true)),
    ("save_safetensors", |bench| bench.save("saved.safetensors")),
    ("load_safetensors", |bench| load_safetensors(bench, false)),
    ("read_safetensors", |bench| load_safetensors(bench, true)),
];

/// `bench DIR [--rounds N] [--only CASE]...`: seconds of every round of every case.
pub fn run(words: &[String]) -> Result<Value, String> {
    let (mut rounds, mut only, mut folder) = (3, Vec::new(), None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--rounds" => rounds = next()?.parse().map_err(|_| "--rounds needs a number")?,
            "--only" => only.push(next()?.as_str()),
            _ => folder = Some(PathBuf::from(word)),
        }
    }
    let folder = folder.ok_or("bench needs a folder")?;
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    if let Some(unknown) = only
        .iter()
        .find(|name| !CASES.iter().any(|case| case.0 == **name))
    {
        return Err(format!("no case {unknown}"));
    }
    let mut bench = Bench {
        folder,
        source: None,
        image: None,
    };
    let mut seconds = Map::new();
    for (name, case) in CASES {
        if only.is_empty() || only.contains(name) {
            let taken: Vec<f64> = (0..rounds).map(|_| case(&mut bench)).collect();
            seconds.insert((*name).to_owned(), json!(taken));
        }
    }
    Ok(Value::Object(seconds))
}
