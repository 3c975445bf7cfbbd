//! What the suites share: the real prover as a scenario.
//!
//! A test says which [`Config`] and which [`Scenario`]; the prover, its phases and
//! its hand-offs are wired up here, once, the way a user would do it.
#![deny(unsafe_code)]

use tidegate::books::{Amount, Layer};
use tidegate::{Run, Scenario};
use tidegate_prover::{Config, Observer, Pipeline, Srs, default_params_dir, planted};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Tells the ledger of each hand-off, so that a backlog can be seen.
struct CountHandOffs<O>(O);

impl<O: Observer> Observer for CountHandOffs<O> {
    fn produced(&self, partition: usize) {
        tidegate::produced(1);
        self.0.produced(partition);
    }

    fn consumed(&self, partition: usize) {
        tidegate::consumed(1);
        self.0.consumed(partition);
    }
}

/// Runs the prover under a scenario: one round proves and verifies all partitions.
///
/// # Panics
///
/// If the parameters cannot be made, or tidegate fails.
pub fn run_prover(scenario: Scenario, config: Config) -> Run {
    run_prover_observed(scenario, config, ())
}

/// [`run_prover`] with an observer of its hand-offs, which lives in the metered process.
///
/// # Panics
///
/// As [`run_prover`].
pub fn run_prover_observed(scenario: Scenario, config: Config, observer: impl Observer) -> Run {
    let observer = CountHandOffs(observer);
    // Made here, by whoever comes first, so that the metered process only maps them.
    let params = default_params_dir();
    if let Err(error) = Srs::ensure(&params, config.circuit_size) {
        panic!("the parameters cannot be made: {error}");
    }
    let mut pipeline = None;
    let capacity = config.channel_capacity as u64;
    // A partition worker holds one finished partition while the channel is full;
    // with its permit held through the send there are no more workers than permits.
    let producers = config.partition_workers as u64;
    scenario
        .queue(capacity, producers)
        .run(|_round| -> Result<(), String> {
            if pipeline.is_none() {
                // Once, in the metered process; a test process may have a subscriber already.
                let _ = tracing_subscriber::registry()
                    .with(tidegate::PhaseLayer::new())
                    .try_init();
                let opened = Pipeline::open(config, &params).map_err(|error| error.to_string())?;
                pipeline = Some(opened);
            }
            let Some(pipeline) = &pipeline else {
                return Err("no pipeline".to_owned());
            };
            let report = pipeline
                .run_round_observed(&observer)
                .map_err(|error| error.to_string())?;
            let done = report.verified + report.failed;
            if done == config.partitions {
                Ok(())
            } else {
                Err(format!(
                    "{done} of {} partitions came out",
                    config.partitions
                ))
            }
        })
}

/// What the config's planted defect keeps each time it strikes a partition, by
/// layer and phase, computed from the circuit's shape.
///
/// # Panics
///
/// If the fixture names a layer that is none.
pub fn expected_per_item(config: &Config) -> Vec<(Layer, &'static str, Amount)> {
    let expected = planted::expected_per_partition(config)
        .into_iter()
        .map(|expected| {
            let layer = match expected.layer {
                "rust-heap" => Layer::RustHeap,
                "native-heap" => Layer::NativeHeap,
                other => panic!("no such layer: {other}"),
            };
            let amount = Amount::new(expected.bytes as i64, expected.blocks as i64);
            (layer, expected.phase, amount)
        });
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    expected
}
