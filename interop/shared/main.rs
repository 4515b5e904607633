//! `burn-interop`: Burn itself behind a small command line, so that another program can be compared with it.

mod bench;
mod commands;
mod entry;
#[cfg(feature = "forward")]
mod forward;
mod model;
mod modules;
#[rustfmt::skip] // it is kept short, to be pasted
#[cfg(feature = "since_0_20")]
#[cfg_attr(
    feature = "since_0_22",
    path = "../../src/burnstore/jobs/outline/snippet.rs"
)]
#[cfg_attr(
    not(feature = "since_0_22"),
    path = "../../src/burnstore/jobs/outline/snippet_backend.rs"
)]
mod outline_snippet;
mod panics;
mod quant;
mod stores;
mod values;
mod zoo;

#[cfg(not(feature = "since_0_22"))]
#[path = "api_backend.rs"]
mod api;
#[cfg(feature = "since_0_22")]
#[path = "api_device.rs"]
mod api;

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use stores::{Options, UNSUPPORTED};

const USAGE: &str = "burn-interop version | gen DIR | load MODEL FILE [options] | \
    save MODEL IN OUT [options] | outline MODEL OUT [--snippet] | read | write | forward MODEL FILE INPUTS | bench DIR [options]";

fn run(words: &[&str], options: &Options) -> Result<Option<Value>, String> {
    match words {
        ["version"] => Ok(Some(commands::version())),
        ["gen", folder] => commands::generate(Path::new(folder)).map(|()| None),
        ["load", model, file] => commands::load(model, Path::new(file), options).map(Some),
        ["save", model, from, to] => {
            commands::save(model, Path::new(from), Path::new(to), options).map(Some)
        }
        ["outline", model, to] => {
            commands::outline(model, Path::new(to), options.snippet).map(|()| None)
        }
        ["read"] => commands::read_packs().map(|()| None),
        ["write"] => commands::write_packs().map(|()| None),
        #[cfg(feature = "forward")]
        ["forward", model, file, inputs] => {
            forward::run(model, Path::new(file), Path::new(inputs)).map(Some)
        }
        #[cfg(not(feature = "forward"))]
        ["forward", ..] => Err(format!("{UNSUPPORTED} forward")),
        _ => Err(format!("usage: {USAGE}")),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    panics::keep_messages();
    let told = panics::caught(|| {
        if words.first().is_some_and(|word| word == "bench") {
            return bench::run(&words[1..]).map(Some);
        }
        let (options, rest) = Options::parse(&words)?;
        run(
            &rest.iter().map(String::as_str).collect::<Vec<_>>(),
            &options,
        )
    });
    let panicked = told.is_err();
    match told.and_then(|result| result) {
        Ok(Some(value)) => println!("{value}"),
        Ok(None) => {}
        Err(error) => {
            let unsupported = error.starts_with(UNSUPPORTED);
            let told = json!({
                "ok": false, "error": error, "panic": panicked, "unsupported": unsupported,
            });
            println!("{told}");
            return ExitCode::from(if unsupported { 3 } else { 1 });
        }
    }
    ExitCode::SUCCESS
}
