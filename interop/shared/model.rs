//! A zoo model whose type is forgotten: what the commands do with any of them.

use std::cell::RefCell;
use std::path::Path;

use burn_store::{ApplyResult, ModuleSnapshot, PathFilter};
use serde_json::{Value, json};

use crate::api::{self, AnyModule, DType};
use crate::entry::Entry;
use crate::stores::Store;
use crate::values;

thread_local! {
    /// The containers of the tensors of one collection: Burn shows them only to a filter.
    static CONTAINERS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note_containers(_path: &str, containers: &str) -> bool {
    CONTAINERS.with_borrow_mut(|seen| seen.push(containers.to_owned()));
    true
}

pub trait Model {
    /// Each tensor in collection order, with the containers it lies in, joined by dots.
    fn entries(&self) -> Result<Vec<(Entry, String)>, String>;
    /// Replaces the values of all F32 parameters by those of their paths.
    fn fill(&mut self, like: &dyn Model, salt: u64);
    fn save(&self, store: Store) -> Result<(), String>;
    fn load(&mut self, store: Store) -> Result<ApplyResult, String>;
    fn outline(&self, to: &Path, snippet: bool) -> Result<(), String>;
}

impl<M: AnyModule> Model for M {
    fn entries(&self) -> Result<Vec<(Entry, String)>, String> {
        CONTAINERS.take();
        let entries = api::collect(self, PathFilter::new().with_predicate(note_containers))?;
        let containers = CONTAINERS.take();
        assert_eq!(entries.len(), containers.len());
        Ok(entries.into_iter().zip(containers).collect())
    }

    fn fill(&mut self, like: &dyn Model, salt: u64) {
        let mut filled = Vec::new();
        for (mut entry, _) in like.entries().expect("a fresh model can be collected") {
            if entry.dtype == DType::F32 {
                entry.bytes = values::parameter_bytes(&entry.path, entry.bytes.len() / 4, salt);
                filled.push(entry);
            }
        }
        let result = api::apply(self, filled);
        assert!(result.errors.is_empty(), "{:?}", result.errors);
    }

    fn save(&self, store: Store) -> Result<(), String> {
        match store {
            Store::Burnpack(mut store) => self.save_into(&mut store).map_err(|e| e.to_string()),
            Store::Safetensors(mut store) => self.save_into(&mut store).map_err(|e| e.to_string()),
            Store::Pytorch(mut store) => self.save_into(&mut store).map_err(|e| e.to_string()),
        }
    }

    fn load(&mut self, store: Store) -> Result<ApplyResult, String> {
        match store {
            Store::Burnpack(mut store) => self.load_from(&mut store).map_err(|e| e.to_string()),
            Store::Safetensors(mut store) => self.load_from(&mut store).map_err(|e| e.to_string()),
            Store::Pytorch(mut store) => self.load_from(&mut store).map_err(|e| e.to_string()),
        }
    }

    #[cfg(feature = "since_0_20")]
    fn outline(&self, to: &Path, snippet: bool) -> Result<(), String> {
        if snippet {
            return crate::outline_snippet::save(self, to.to_str().ok_or("the path is not UTF-8")?);
        }
        burnstore_outline::save(self, to).map_err(|error| error.to_string())
    }

    #[cfg(not(feature = "since_0_20"))]
    fn outline(&self, _to: &Path, _snippet: bool) -> Result<(), String> {
        Err(format!("{} outline", crate::stores::UNSUPPORTED))
    }
}

/// The tensors of a model as the protocol tells them.
pub fn tensors_json(model: &dyn Model) -> Result<Value, String> {
    let tensors = model.entries()?.into_iter().map(|(entry, containers)| {
        let stack: Vec<_> = containers.split('.').collect();
        let mut tensor = entry.to_json();
        tensor["module_type"] = json!(module_type(&stack));
        tensor["containers"] = json!(stack);
        if let DType::QFloat(_) = entry.dtype {
            tensor["dequantized_sha256"] = json!(crate::quant::dequantized_sha256(&entry));
        }
        tensor
    });
    Ok(tensors.collect())
}

/// The innermost container that a program declared (0.19 names every container by its bare type).
fn module_type<'a>(stack: &[&'a str]) -> Option<&'a str> {
    let declared = |name: &&&str| {
        if cfg!(feature = "since_0_20") {
            name.starts_with("Struct:") || name.starts_with("Enum:")
        } else {
            !["Vec", "Array"].contains(name)
        }
    };
    stack.iter().rev().find(declared).copied()
}
