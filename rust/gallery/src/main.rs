//! `gallery`: well-known models as Burn modules, each with its outline and its forward pass.
//!
//! ```text
//! gallery MODEL outline CONFIG.json OUT.outline.bpk
//! gallery MODEL record CONFIG.json INPUTS.bpk OUT.outline.bpk [WEIGHTS.bpk]
//! gallery MODEL forward CONFIG.json WEIGHTS.bpk INPUTS.bpk OUTPUTS.bpk
//! ```
//!
//! `forward` loads the weights strictly: a tensor that is missing, left over or of another shape is an error.

mod bert;
mod clip;
mod gpt2;
mod llama;
mod resnet;
mod run;
mod t5;
mod vit;
mod whisper;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["resnet", rest @ ..] => run::command::<resnet::ResNet>(rest),
        ["bert", rest @ ..] => run::command::<bert::Bert>(rest),
        ["roberta", rest @ ..] => run::command::<bert::Roberta>(rest),
        ["gpt2", rest @ ..] => run::command::<gpt2::Gpt2>(rest),
        ["llama", rest @ ..] => run::command::<llama::Llama>(rest),
        ["whisper", rest @ ..] => run::command::<whisper::Whisper>(rest),
        ["vit", rest @ ..] => run::command::<vit::VisionTransformer>(rest),
        ["clip", rest @ ..] => run::command::<clip::Clip>(rest),
        ["t5", rest @ ..] => run::command::<t5::T5>(rest),
        [] => Err("usage: gallery MODEL outline|record|forward …".to_owned()),
        [unknown, ..] => Err(format!("no model {unknown}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gallery: error: {error}");
            ExitCode::FAILURE
        }
    }
}
