//! A tensor with its bytes, and how it is told in JSON.

use burn::tensor::DType;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub struct Entry {
    pub path: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub param_id: Option<u64>,
    pub bytes: Vec<u8>,
}

impl Entry {
    pub fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "dtype": serde_json::to_value(self.dtype).unwrap(),
            "shape": self.shape,
            "param_id": self.param_id,
            "sha256": sha256(&self.bytes),
        })
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
