//! Books that were kept on a real card, judged again where there is none.

use std::path::Path;

use tidegate::books::{Amount, Layer};
use tidegate::reconcile::{ContextsBy, reconcile};
use tidegate::verdict::{Driver, Settings, judge};
use tidegate::{Class, Run};

fn stored(name: &str) -> Run {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/gpu-runs");
    Run::read(&folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// The books of this run lose exactly so much per round, and nothing else.
fn expect(name: &str, class: Class, lost: &[(Layer, Amount)]) -> Run {
    let run = stored(name);
    let verdict = judge(run.books(), &Settings::default());
    assert_eq!(verdict.class, class, "{name}: {}", verdict.sentence);
    let mut found: Vec<_> = verdict
        .findings
        .iter()
        .map(|finding| {
            assert_eq!(finding.driver, Driver::PerRound, "{name}: {finding:?}");
            let each = finding.per_driver;
            (finding.layer, each.unwrap_or_else(|| panic!("{finding:?}")))
        })
        .collect();
    found.sort();
    assert_eq!(found, lost, "{name}");
    run
}

fn one(bytes: i64) -> Amount {
    Amount::new(bytes, 1)
}

#[test]
fn a_program_that_releases_one_of_everything_is_clean() {
    let run = expect("clean", Class::Clean, &[]);
    let phases = &run.books().phases;
    for layer in [
        Layer::Device,
        Layer::DevicePool,
        Layer::Managed,
        Layer::Pinned,
        Layer::Registered,
        Layer::GpuStreams,
        Layer::GpuEvents,
        Layer::GpuGraphs,
    ] {
        let phase = phases.iter().find(|phase| phase.layer == layer);
        let phase = phase.unwrap_or_else(|| panic!("no {layer}"));
        assert!(phase.allocated.blocks >= 16, "{phase:?}");
        assert_eq!(phase.allocated, phase.released, "{layer}");
    }
}

#[test]
fn each_kind_of_memory_that_is_lost_is_a_leak_to_the_byte() {
    expect("device", Class::Leak, &[(Layer::Device, one(1 << 20))]);
    expect("array", Class::Leak, &[(Layer::Device, one(64 * 64 * 4))]);
    expect("pool", Class::Leak, &[(Layer::DevicePool, one(1 << 20))]);
    expect("managed", Class::Leak, &[(Layer::Managed, one(1 << 16))]);
    expect("pinned", Class::Leak, &[(Layer::Pinned, one(1 << 16))]);
    // The block that was registered is lost with its registration.
    let both = [
        (Layer::NativeHeap, one(1 << 16)),
        (Layer::Registered, one(1 << 16)),
    ];
    expect("register", Class::Leak, &both);
}

#[test]
fn each_kind_of_object_that_is_lost_is_a_handle_leak() {
    for (name, layer) in [
        ("stream", Layer::GpuStreams),
        ("event", Layer::GpuEvents),
        ("graph", Layer::GpuGraphs),
        ("exec", Layer::GpuGraphs),
    ] {
        expect(name, Class::HandleLeak, &[(layer, one(0))]);
    }
}

#[test]
fn the_card_is_explained_in_every_stored_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/gpu-runs");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.contains('.') || name.starts_with("prover") || name.starts_with("supraseal") {
            continue;
        }
        let run = stored(&name);
        let reconciliation = reconcile(run.books());
        // These runs are older than the readings of mappings and of the first context.
        assert_eq!(reconciliation.resident, None);
        let card = reconciliation.card.unwrap_or_else(|| panic!("{name}"));
        assert_eq!(card.contexts_by, ContextsBy::LeastEver);
        assert_eq!(card.contexts_alive, 1);
        assert!(card.reconciled, "{name}: {card:?}");
        // What it had at the least: a context of this driver takes 526 to 532 MiB, and the
        // driver's pool takes 32 MiB at once.
        let context = (card.contexts >> 20) - if name == "pool" { 12 } else { 0 };
        assert!((520..=534).contains(&context), "{name}: {card:?}");
        assert_eq!(card.pools_kept, None, "{name}: it was not asked");
        let lost = match name.as_str() {
            "device" | "pool" => 20 << 20,
            "array" => 20 * 64 * 64 * 4,
            _ => 0,
        };
        assert_eq!(card.ledger, lost, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 12);
}

#[test]
fn the_healthy_provers_pass_at_8_and_at_60_rounds_and_are_explained() {
    for name in [
        "prover-split",
        "prover-sync",
        "prover-split-60-rounds",
        "prover-sync-60-rounds",
    ] {
        let run = stored(name);
        let verdict = judge(run.books(), &Settings::default());
        assert!(verdict.class.passes(), "{name}: {}", verdict.sentence);
        assert_eq!(verdict.findings, [], "{name}");
        let reconciliation = reconcile(run.books());
        let resident = reconciliation.resident.unwrap_or_else(|| panic!("{name}"));
        let card = reconciliation.card.unwrap_or_else(|| panic!("{name}"));
        assert!(resident.reconciled, "{name}: {resident:?}");
        assert!(card.reconciled, "{name}: {card:?}");
    }
}

#[test]
fn what_each_broken_prover_loses_on_the_card_is_told_to_the_byte() {
    let in_synthesis = [(Layer::RustHeap, Amount::new(1_503_712, 12))];
    expect("prover-aux-in-static", Class::Leak, &in_synthesis);
    let in_finish = |amount| [(Layer::NativeHeap, amount)];
    expect(
        "prover-loses-c-block",
        Class::Leak,
        &in_finish(Amount::new(4 * 96, 4)),
    );
    expect(
        "prover-loses-scratch",
        Class::Leak,
        &in_finish(Amount::new(525_248, 12)),
    );
    // A pending proof is in two phases' books.
    let pending = Amount::new(758_352, 20);
    expect(
        "prover-forgets-pending",
        Class::Leak,
        &[
            (Layer::RustHeap, Amount::new(656, 2)),
            (Layer::RustHeap, pending),
        ],
    );
    expect(
        "prover-skips-finish",
        Class::Leak,
        &[
            (Layer::RustHeap, Amount::new(2096, 4)),
            (Layer::RustHeap, pending),
        ],
    );
}

#[test]
fn parameters_that_supraseal_loads_and_nobody_releases_are_page_locked_memory() {
    expect("supraseal", Class::Clean, &[]);
    // The kernel's gauge of shared memory grows with them, and is no finding of its own.
    expect(
        "supraseal-loses-parameters",
        Class::Leak,
        &[
            (Layer::NativeHeap, Amount::new(1392, 2)),
            (Layer::Pinned, one(2_359_296)),
        ],
    );
}

#[test]
fn a_release_that_a_host_function_is_refused_is_told_as_the_cause() {
    let run = expect("hostfn", Class::Leak, &[(Layer::Pinned, one(4096))]);
    let verdict = judge(run.books(), &Settings::default());
    let cause = verdict.findings[0].cause.as_deref().unwrap_or_default();
    assert!(
        cause.starts_with("cudaFreeHost was refused 20 times: 800"),
        "{cause}"
    );
}
