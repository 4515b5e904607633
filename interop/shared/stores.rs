//! Command-line options turned into the options of Burn's stores.

use std::path::Path;

use burn::tensor::Bytes;
use burn_store::{
    BurnToPyTorchAdapter, BurnpackStore, PyTorchToBurnAdapter, PytorchStore, SafetensorsStore,
};

pub enum Store {
    Burnpack(BurnpackStore),
    Safetensors(SafetensorsStore),
    Pytorch(PytorchStore),
}

#[derive(Default, Clone)]
pub struct Options {
    pub partial: bool,
    pub no_validate: bool,
    pub filters: Vec<String>,
    pub full_paths: Vec<String>,
    pub remaps: Vec<(String, String)>,
    pub from_adapter: Option<String>,
    pub to_adapter: Option<String>,
    pub skip_enum_variants: bool,
    pub contiguous: Option<bool>,
    pub top_level_key: Option<String>,
    pub zero_copy: bool,
    pub bytes: bool,
    pub metadata: Vec<(String, String)>,
    pub snippet: bool,
}

impl Options {
    /// Takes options off a command line; what is left over are its positional words.
    pub fn parse(words: &[String]) -> Result<(Self, Vec<String>), String> {
        let (mut options, mut rest) = (Self::default(), Vec::new());
        let mut words = words.iter().cloned();
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--partial" => options.partial = true,
                "--no-validate" => options.no_validate = true,
                "--filter" => options.filters.push(next()?),
                "--full-path" => options.full_paths.push(next()?),
                "--remap" => options.remaps.push((next()?, next()?)),
                "--from-adapter" => options.from_adapter = Some(next()?),
                "--to-adapter" => options.to_adapter = Some(next()?),
                "--skip-enum-variants" => options.skip_enum_variants = true,
                "--contiguous" => options.contiguous = Some(next()? == "on"),
                "--top-level-key" => options.top_level_key = Some(next()?),
                "--zero-copy" => options.zero_copy = true,
                "--bytes" => options.bytes = true,
                "--snippet" => options.snippet = true,
                "--metadata" => options.metadata.push((next()?, next()?)),
                other if other.starts_with("--") => return Err(format!("unknown option {other}")),
                _ => rest.push(word),
            }
        }
        Ok((options, rest))
    }

    /// The store for a file, chosen by its suffix; an option this version does not have is an error.
    pub fn store(&self, file: &Path) -> Result<Store, String> {
        match file.extension().and_then(|suffix| suffix.to_str()) {
            Some("bpk") => self.burnpack(file).map(Store::Burnpack),
            Some("safetensors") => self.safetensors(file).map(Store::Safetensors),
            Some("pt" | "pth") => self.pytorch(file).map(Store::Pytorch),
            other => Err(format!("no store for suffix {other:?}")),
        }
    }

    fn burnpack(&self, file: &Path) -> Result<BurnpackStore, String> {
        self.refuse(self.skip_enum_variants, "--skip-enum-variants on .bpk")?;
        self.refuse(self.contiguous.is_some(), "--contiguous on .bpk")?;
        self.refuse(self.top_level_key.is_some(), "--top-level-key on .bpk")?;
        let mut store = if self.bytes {
            BurnpackStore::from_bytes(Some(Bytes::from_bytes_vec(read(file)?)))
        } else if self.zero_copy {
            zero_copy(file)?
        } else {
            BurnpackStore::from_file(file)
        };
        store = store
            .allow_partial(self.partial)
            .validate(!self.no_validate)
            .overwrite(true);
        for pattern in &self.filters {
            store = store.with_regex(pattern);
        }
        for path in &self.full_paths {
            store = store.with_full_path(path);
        }
        for (from, to) in &self.remaps {
            store = store.with_remap_pattern(from, to);
        }
        for (key, value) in &self.metadata {
            store = store.metadata(key, value);
        }
        self.burnpack_adapters(store)
    }

    fn safetensors(&self, file: &Path) -> Result<SafetensorsStore, String> {
        self.refuse(
            self.top_level_key.is_some(),
            "--top-level-key on .safetensors",
        )?;
        self.refuse(self.zero_copy, "--zero-copy on .safetensors")?;
        let mut store = if self.bytes {
            SafetensorsStore::from_bytes(Some(read(file)?))
        } else {
            SafetensorsStore::from_file(file)
        };
        store = store
            .allow_partial(self.partial)
            .validate(!self.no_validate)
            .overwrite(true);
        for pattern in &self.filters {
            store = store.with_regex(pattern);
        }
        for path in &self.full_paths {
            store = store.with_full_path(path);
        }
        for (from, to) in &self.remaps {
            store = store.with_key_remapping(from, to);
        }
        for (key, value) in &self.metadata {
            store = store.metadata(key, value);
        }
        let store = structural!(self, store);
        adapters!(self, store)
    }

    fn pytorch(&self, file: &Path) -> Result<PytorchStore, String> {
        self.refuse(
            self.bytes || self.zero_copy,
            "--bytes and --zero-copy on .pt",
        )?;
        self.refuse(self.from_adapter.is_some(), "--from-adapter on .pt")?;
        let mut store = PytorchStore::from_file(file)
            .allow_partial(self.partial)
            .validate(!self.no_validate);
        if let Some(key) = &self.top_level_key {
            store = store.with_top_level_key(key);
        }
        for pattern in &self.filters {
            store = store.with_regex(pattern);
        }
        for path in &self.full_paths {
            store = store.with_full_path(path);
        }
        for (from, to) in &self.remaps {
            store = store.with_key_remapping(from, to);
        }
        Ok(structural!(self, store))
    }

    #[cfg(feature = "since_0_21")]
    fn burnpack_adapters(&self, store: BurnpackStore) -> Result<BurnpackStore, String> {
        adapters!(self, store)
    }

    #[cfg(not(feature = "since_0_21"))]
    fn burnpack_adapters(&self, store: BurnpackStore) -> Result<BurnpackStore, String> {
        let asked = self.from_adapter.is_some() || self.to_adapter.is_some();
        self.refuse(asked, "an adapter on .bpk")?;
        Ok(store)
    }

    fn refuse(&self, asked: bool, what: &str) -> Result<(), String> {
        if asked {
            return Err(format!("{UNSUPPORTED} {what}"));
        }
        Ok(())
    }
}

/// How the message of an option begins that this version, or this kind of file, does not have.
pub const UNSUPPORTED: &str = "unsupported:";

/// The adapters, which are types and cannot be chosen at run time in one expression.
macro_rules! adapters {
    ($options:expr, $store:expr) => {{
        let store = match $options.from_adapter.as_deref() {
            None | Some("none") => $store,
            Some("pytorch") => $store.with_from_adapter(PyTorchToBurnAdapter),
            #[cfg(feature = "since_0_21")]
            Some("half") => $store.with_from_adapter(burn_store::HalfPrecisionAdapter::new()),
            Some(other) => return Err(format!("{UNSUPPORTED} from-adapter {other}")),
        };
        match $options.to_adapter.as_deref() {
            None | Some("none") => Ok(store),
            Some("pytorch") => Ok(store.with_to_adapter(BurnToPyTorchAdapter)),
            #[cfg(feature = "since_0_21")]
            Some("half") => Ok(store.with_to_adapter(burn_store::HalfPrecisionAdapter::new())),
            Some(other) => Err(format!("{UNSUPPORTED} to-adapter {other}")),
        }
    }};
}
use adapters;

/// The two options about the structure of paths, on the stores that have them.
#[cfg(feature = "since_0_20")]
macro_rules! structural {
    ($options:expr, $store:expr) => {{
        let mut store = $store;
        if $options.skip_enum_variants {
            store = store.skip_enum_variants(true);
        }
        if let Some(on) = $options.contiguous {
            store = store.map_indices_contiguous(on);
        }
        store
    }};
}

#[cfg(not(feature = "since_0_20"))]
macro_rules! structural {
    ($options:expr, $store:expr) => {{
        $options.refuse($options.skip_enum_variants, "--skip-enum-variants")?;
        $options.refuse($options.contiguous.is_some(), "--contiguous")?;
        $store
    }};
}
use structural;

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| error.to_string())
}

/// The file's tensors without a copy: 0.20 and 0.21 slice the mapped file, later versions static bytes.
#[cfg(feature = "since_0_22")]
fn zero_copy(file: &Path) -> Result<BurnpackStore, String> {
    Ok(BurnpackStore::from_static(read(file)?.leak()))
}

#[cfg(all(feature = "since_0_20", not(feature = "since_0_22")))]
fn zero_copy(file: &Path) -> Result<BurnpackStore, String> {
    Ok(BurnpackStore::from_file(file).zero_copy(true))
}

#[cfg(not(feature = "since_0_20"))]
fn zero_copy(_file: &Path) -> Result<BurnpackStore, String> {
    Err(format!("{UNSUPPORTED} --zero-copy"))
}
