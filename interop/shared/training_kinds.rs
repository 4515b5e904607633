//! The optimizers and schedulers that both programs of a training know, and the gradients that it gets.

pub const STEPS: usize = 3;
pub const RATE: f64 = 0.125;

/// The gradient of so many numbers in one step: exact in F32, with both signs and zeros.
pub fn gradient(step: usize, count: usize) -> Vec<f32> {
    let numbers = (0..count).map(|index| ((step * 7 + index * 3) % 11) as f32);
    numbers.map(|number| (number - 5.0) / 8.0).collect()
}

/// Calls a macro with the configuration of the optimizer of that name.
#[macro_export]
macro_rules! with_optimizer {
    ($name:expr, $run:ident) => {
        match $name {
            "Adam" => $run!(AdamConfig::new()),
            "Adam-amsgrad" => $run!(AdamConfig::new().with_amsgrad(true)),
            "AdamW" => $run!(AdamWConfig::new().with_weight_decay(0.5)),
            "Sgd" => $run!(
                SgdConfig::new().with_momentum(Some(
                    MomentumConfig::new()
                        .with_dampening(0.25)
                        .with_nesterov(true)
                ))
            ),
            "AdaGrad" => $run!(AdaGradConfig::new().with_lr_decay(0.5)),
            "RmsProp" => $run!(RmsPropConfig::new().with_momentum(0.5)),
            "RmsProp-centered" => {
                $run!(RmsPropConfig::new().with_centered(true).with_momentum(0.5))
            }
            "Adan" => $run!(AdanConfig::new()),
            other => panic!("no optimizer {other}"),
        }
    };
}

/// Calls a macro with the configuration of the scheduler of that name.
#[macro_export]
macro_rules! with_scheduler {
    ($name:expr, $run:ident) => {
        match $name {
            "Linear" => $run!(LinearLrSchedulerConfig::new(0.5, 0.25, 16)),
            "Cosine" => $run!(CosineAnnealingLrSchedulerConfig::new(0.5, 16)),
            "Exponential" => $run!(ExponentialLrSchedulerConfig::new(0.5, 0.75)),
            "Noam" => $run!(NoamLrSchedulerConfig::new(0.5).with_warmup_steps(4)),
            "Step" => $run!(StepLrSchedulerConfig::new(0.5, 2)),
            "composed" => $run!(
                ComposedLrSchedulerConfig::new()
                    .cosine(CosineAnnealingLrSchedulerConfig::new(0.5, 16))
                    .exponential(ExponentialLrSchedulerConfig::new(0.5, 0.75))
                    .noam(NoamLrSchedulerConfig::new(0.5).with_warmup_steps(4))
                    .linear(LinearLrSchedulerConfig::new(0.5, 0.25, 16))
            ),
            other => panic!("no scheduler {other}"),
        }
    };
}
