//! The commands that work on one model or on files without one.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use burn_store::ApplyResult;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{self, DType, Device};
use crate::entry::Entry;
use crate::model::{Model, tensors_json};
use crate::stores::{Options, UNSUPPORTED};
use crate::{panics, values, zoo};

/// A fresh model whose F32 parameters have the values of their paths.
///
/// A column-major Linear is left as Burn draws it before a `load`: once its value exists, Burn 0.22 no
/// longer accepts the stored shape.
fn filled(name: &str, salt: u64) -> Result<Box<dyn Model>, String> {
    let device = Device::default();
    api::seed(&device);
    let site = zoo::Site {
        device: &device,
        salt,
    };
    let fresh = || zoo::build(name, &site).ok_or(format!("no model {name}"));
    let mut model = fresh()?;
    if salt == 0 || !name.contains("_col") {
        model.fill(&*fresh()?, salt);
    }
    Ok(model)
}

pub fn version() -> Value {
    let quantized = filled("quantized", 0).and_then(|model| tensors_json(&*model));
    let schemes: Vec<_> = quantized
        .iter()
        .flat_map(|tensors| tensors.as_array().unwrap())
        .map(|tensor| tensor["dtype"]["QFloat"].clone())
        .collect();
    json!({
        "burn": burn_store::BurnpackStore::default_metadata()["version"],
        "backend": api::BACKEND,
        "models": zoo::NAMES,
        "dtypes": api::DTYPES.iter().map(|d| serde_json::to_value(d).unwrap()).collect::<Vec<_>>(),
        "schemes": schemes,
        "read": api::READS_PACKS,
        "write": api::WRITES_PACKS,
        "forward": cfg!(feature = "forward"),
    })
}

/// Models that are also saved with metadata of their own.
const WITH_METADATA: &[&str] = &["linear", "nested", "empty"];
const METADATA: &[(&str, &str)] = &[
    ("author", "Grüße aus Köln"),
    ("ключ", "значение"),
    ("emoji", "🔥🦀"),
    ("empty", ""),
    ("multi\nline", "a\tb\"c\\d\u{0}e"),
    ("format", "overridden"),
];

pub fn generate(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    for name in zoo::NAMES {
        let described = generate_one(name, folder)?;
        let text = serde_json::to_string_pretty(&described).unwrap();
        let file = folder.join(format!("{name}.json"));
        std::fs::write(file, text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn generate_one(name: &str, folder: &Path) -> Result<Value, String> {
    let model = filled(name, 0)?;
    let mut failed = serde_json::Map::new();
    let mut save = |suffix: &str, options: Options| {
        let file = folder.join(format!("{name}.{suffix}"));
        let saved = panics::caught(|| model.save(options.store(&file)?)).and_then(|result| result);
        if let Err(error) = saved {
            std::fs::remove_file(file).ok();
            failed.insert(suffix.to_owned(), json!(error));
        }
    };
    save("bpk", Options::default());
    save("safetensors", Options::default());
    let to_adapter = Some("pytorch".to_owned());
    save(
        "torch.safetensors",
        Options {
            to_adapter,
            ..Options::default()
        },
    );
    let own = WITH_METADATA.contains(&name);
    if own {
        let pairs = METADATA.iter();
        let metadata = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
        save(
            "meta.bpk",
            Options {
                metadata,
                ..Options::default()
            },
        );
    }
    let default: BTreeMap<_, _> = burn_store::BurnpackStore::default_metadata();
    let mut extended = default.clone();
    extended.extend(METADATA.iter().map(|(k, v)| (k.to_string(), v.to_string())));
    Ok(json!({
        "model": name,
        "tensors": tensors_json(&*model)?,
        "metadata": default,
        "meta_metadata": own.then_some(extended),
        "failed": failed,
    }))
}

/// Loads a file into a model; when that fails, a tolerant second load says what Burn found.
pub fn load(name: &str, file: &Path, options: &Options) -> Result<Value, String> {
    let mut model = filled(name, 1)?;
    let store = options.store(file)?;
    let (error, result) = match panics::caught_loudly(|| model.load(store)) {
        Ok(Ok(result)) => (None, Some(result)),
        Ok(Err(error)) => (Some(error), tolerant(name, file, options)?),
        Err(panic) => {
            // Burn moved the module out of its place and did not put one back.
            std::mem::forget(model);
            return Ok(json!({
                "ok": false, "error": panic, "panic": true, "result": null, "tensors": null,
            }));
        }
    };
    Ok(json!({
        "ok": error.is_none(),
        "error": error,
        "panic": false,
        "result": result.as_ref().map(result_json),
        "tensors": tensors_json(&*model)?,
    }))
}

fn tolerant(name: &str, file: &Path, options: &Options) -> Result<Option<ApplyResult>, String> {
    let options = Options {
        partial: true,
        no_validate: true,
        ..options.clone()
    };
    let mut model = filled(name, 1)?;
    let store = options.store(file)?;
    match panics::caught(|| model.load(store)) {
        Ok(loaded) => Ok(loaded.ok()),
        Err(_) => {
            std::mem::forget(model);
            Ok(None)
        }
    }
}

fn result_json(result: &ApplyResult) -> Value {
    json!({
        "applied": result.applied,
        "skipped": result.skipped,
        "missing": api::missing(result),
        "unused": result.unused,
        "errors": result.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

pub fn save(name: &str, from: &Path, to: &Path, options: &Options) -> Result<Value, String> {
    let mut model = filled(name, 1)?;
    model.load(Options::default().store(from)?)?;
    model.save(options.store(to)?)?;
    Ok(json!({"ok": true, "error": null}))
}

/// Saves the outline of an untrained model, by the crate or by the snippet that is pasted.
pub fn outline(name: &str, to: &Path, snippet: bool) -> Result<(), String> {
    let device = Device::default();
    let site = zoo::Site {
        device: &device,
        salt: 0,
    };
    let model = zoo::build(name, &site).ok_or(format!("no model {name}"))?;
    model.outline(to, snippet)
}

/// Answers each line of the input with one line of JSON.
fn answer_lines(answer: impl Fn(&str) -> Value) -> Result<(), String> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        writeln!(out, "{}", answer(&line)).map_err(|error| error.to_string())?;
        out.flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub fn read_packs() -> Result<(), String> {
    if !api::READS_PACKS {
        return Err(format!(
            "{UNSUPPORTED} this version reads a pack only into a module"
        ));
    }
    answer_lines(|file| {
        let (read, panicked) = match panics::caught(|| api::read_pack(Path::new(file))) {
            Ok(read) => (read, false),
            Err(message) => (Err(message), true),
        };
        match read {
            Ok((metadata, entries)) => json!({
                "file": file, "ok": true, "error": null, "panic": false,
                "metadata": metadata,
                "tensors": entries.iter().map(Entry::to_json).collect::<Vec<_>>(),
            }),
            Err(error) => json!({"file": file, "ok": false, "error": error, "panic": panicked}),
        }
    })
}

#[derive(Deserialize)]
struct PackOrder {
    out: PathBuf,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    tensors: Vec<TensorOrder>,
}

#[derive(Deserialize)]
struct TensorOrder {
    path: String,
    dtype: DType,
    shape: Vec<usize>,
    param_id: Option<u64>,
    #[serde(default)]
    seed: u64,
    hex: Option<String>,
}

impl TensorOrder {
    fn entry(self) -> Result<Entry, String> {
        let bytes = match &self.hex {
            Some(hex) => unhex(hex).ok_or(format!("{}: not hex", self.path))?,
            None => values::bytes_of(self.dtype, self.shape.iter().product(), self.seed),
        };
        Ok(Entry {
            path: self.path,
            dtype: self.dtype,
            shape: self.shape,
            param_id: self.param_id,
            bytes,
        })
    }
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<_>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let pairs = digits?;
    (pairs.len() % 2 == 0).then(|| pairs.chunks(2).map(|p| (p[0] << 4 | p[1]) as u8).collect())
}

pub fn write_packs() -> Result<(), String> {
    if !api::WRITES_PACKS {
        return Err(format!(
            "{UNSUPPORTED} this version has no public low-level writer"
        ));
    }
    answer_lines(|line| {
        let written = panics::caught(|| write_pack(line)).and_then(|result| result);
        match written {
            Ok((out, tensors)) => {
                json!({"out": out, "ok": true, "error": null, "tensors": tensors})
            }
            Err(error) => json!({"ok": false, "error": error}),
        }
    })
}

fn write_pack(line: &str) -> Result<(PathBuf, Vec<Value>), String> {
    let order: PackOrder = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let entries: Result<Vec<_>, _> = order.tensors.into_iter().map(TensorOrder::entry).collect();
    let entries = entries?;
    let told = entries.iter().map(Entry::to_json).collect();
    api::write_pack(&order.out, &order.metadata, entries)?;
    Ok((order.out, told))
}
