#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod forward;
mod record;

use std::fmt;
use std::path::Path;

pub use forward::{Forward, MOST_BYTES, Recordable, Recorded};

/// The key of the file's metadata under which the outline is stored.
pub const KEY: &str = "burnstore.outline";

/// The key of the file's metadata under which a recorded forward pass is stored.
pub const FORWARD_KEY: &str = "burnstore.forward";

/// The number of the outline's JSON format; a reader refuses numbers that it does not know.
pub const FORMAT: u32 = 1;

/// An outline that cannot be saved, with the store's own message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot save the outline: {}", self.0)
    }
}

impl std::error::Error for Error {}

/// Return whether an existing file of this name may be replaced: only one that is called an outline.
fn is_outline_name(path: &Path) -> bool {
    path.to_str()
        .is_some_and(|name| name.ends_with(".outline.bpk"))
}

/// Declare the public functions for one version of Burn; both sources differ in the backend parameter only.
#[allow(unused_macros)]
macro_rules! version {
    ($feature:literal, $module:ident, $burn:ident, $store:ident, $source:literal) => {
        #[cfg(feature = $feature)]
        #[doc = concat!("The functions of this crate for models of the Burn of feature `", $feature, "`.")]
        pub mod $module {
            use $burn as burn;
            use $store as burn_store;

            include!($source);
        }
    };
}

version!("burn-0-20", v0_20, burn_0_20, burn_store_0_20, "backend.rs");
version!("burn-0-21", v0_21, burn_0_21, burn_store_0_21, "backend.rs");
version!("burn-0-22", v0_22, burn_0_22, burn_store_0_22, "device.rs");
version!(
    "burn-0-23-pre",
    v0_23,
    burn_0_23,
    burn_store_0_23,
    "device.rs"
);

#[cfg(not(any(
    feature = "burn-0-20",
    feature = "burn-0-21",
    feature = "burn-0-22",
    feature = "burn-0-23-pre"
)))]
compile_error!(
    "choose the version of Burn: add one of the features burn-0-20, burn-0-21, burn-0-22, burn-0-23-pre"
);

// With one feature, which is what a program wants, its functions are those of the crate. With several (two programs of
// one workspace) they are found in the modules, as no name could say which Burn is meant.
#[cfg(all(
    feature = "burn-0-20",
    not(any(
        feature = "burn-0-21",
        feature = "burn-0-22",
        feature = "burn-0-23-pre"
    ))
))]
pub use v0_20::{describe, record_forward, save, stir};
#[cfg(all(
    feature = "burn-0-21",
    not(any(
        feature = "burn-0-20",
        feature = "burn-0-22",
        feature = "burn-0-23-pre"
    ))
))]
pub use v0_21::{describe, record_forward, save, stir};
#[cfg(all(
    feature = "burn-0-22",
    not(any(
        feature = "burn-0-20",
        feature = "burn-0-21",
        feature = "burn-0-23-pre"
    ))
))]
pub use v0_22::{describe, record_forward, save, stir};
#[cfg(all(
    feature = "burn-0-23-pre",
    not(any(feature = "burn-0-20", feature = "burn-0-21", feature = "burn-0-22"))
))]
pub use v0_23::{describe, record_forward, save, stir};
