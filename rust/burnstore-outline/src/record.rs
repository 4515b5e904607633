//! What a walk over a module finds, independent of the Burn version, and its JSON.

use std::collections::HashSet;
use std::fmt::Write;

/// The modules met so far, in the order of the walk.
#[derive(Default)]
pub(crate) struct Record {
    path: Vec<String>,
    containers: Vec<String>,
    modules: Pairs,
    variants: Pairs,
    layouts: Pairs,
}

/// A JSON object of strings that keeps the order in which its members came.
#[derive(Default)]
struct Pairs {
    known: HashSet<String>,
    members: Vec<(String, String)>,
}

impl Record {
    /// Enter the child `name` of the module at the current path; `container` is that module's own kind.
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        let path = self.path.join(".");
        if container.starts_with("Enum:") {
            self.variants.set(&path, name);
        }
        self.modules.set(&path, container);
        self.path.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    /// Leave the child that was entered last.
    pub(crate) fn exit(&mut self) {
        self.path.pop();
        self.containers.pop();
    }

    /// Return whether the parameter at the current path is the weight of a Linear.
    pub(crate) fn is_linear_weight(&self) -> bool {
        self.containers
            .last()
            .is_some_and(|kind| kind == "Struct:Linear")
            && self.path.last().is_some_and(|name| name == "weight")
    }

    /// Note that the parameter's module stores it transposed, as `LinearLayout::Col` does.
    pub(crate) fn transposed(&mut self) {
        let owner = &self.path[..self.path.len() - 1];
        self.layouts.set(&owner.join("."), "Col");
    }

    /// Return the outline as JSON: `burn` is Burn's version, `display` the model as Burn prints it.
    pub(crate) fn json(&self, burn: &str, display: &str) -> String {
        format!(
            r#"{{"format":{},"burn":{},"modules":{},"variants":{},"layouts":{},"display":{}}}"#,
            crate::FORMAT,
            quoted(burn),
            self.modules.json(),
            self.variants.json(),
            self.layouts.json(),
            quoted(display)
        )
    }
}

impl Pairs {
    /// Add a member, unless its key is known: a module is met again with each of its fields.
    fn set(&mut self, key: &str, value: &str) {
        if self.known.insert(key.to_owned()) {
            self.members.push((key.to_owned(), value.to_owned()));
        }
    }

    fn json(&self) -> String {
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

/// Return a text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '.. => out.push(character),
            _ => write!(out, "\\u{:04x}", u32::from(character)).expect("a String takes everything"),
        }
    }
    out.push('"');
    out
}
