//! `cargo tidegate gate` and `bless` in temporary projects, over stored runs.

use crate::common::parsed;
use crate::project::{Project, expect, flat, phase, phase_book};
use serde_json::{Value, json};

/// A project with a blessed scenario `a` and its runs `a1` to `a3`.
fn blessed() -> Project {
    let project = Project::new();
    project.three_clean("a");
    let done = project.call(&["bless", "a1", "a2", "a3", "--reason", "the first one"]);
    expect(&done, 0, &["`a`, 3 runs of 16 measured rounds"]);
    project
}

/// The gate's report, and its exit code.
fn gate(project: &Project, runs: &[&str]) -> (i32, Value, String) {
    let words: Vec<&str> = ["gate", "--json", "gate.json"]
        .into_iter()
        .chain(runs.iter().copied())
        .collect();
    let (code, words) = project.call(&words);
    let report = parsed(&project.read("gate.json"));
    (code, report, words)
}

#[test]
fn without_a_baseline_it_is_inconclusive_and_the_command_that_makes_one_is_said() {
    let project = Project::new();
    project.three_clean("a");
    let done = project.call(&["gate", "a1", "a2"]);
    expect(
        &done,
        5,
        &[
            "gate: inconclusive: `a`; 0 of 1 scenario judged",
            "`a` has no baseline; make one with `cargo tidegate bless a1 a2 --reason \"…\"`",
        ],
    );
    project.write("tidegate.toml", "[baselines]\nrequired = false\n");
    expect(
        &project.call(&["gate", "a1"]),
        0,
        &["gate: pass: 1 of 1 scenario judged"],
    );
}

#[test]
fn a_blessed_scenario_passes_and_the_baseline_holds_the_reason_and_the_machine() {
    let project = blessed();
    let [file] = &project.baselines()[..] else {
        panic!("one baseline")
    };
    assert_eq!(
        file,
        "tidegate/baselines/a/16-cpus_linux-6.18_glibc-2.39_thp-madvise.baseline"
    );
    let text = project.read(file);
    assert!(
        text.contains("\nreason \"the first one\"\nmachine cpus=16 kernel=6.18 "),
        "{text}"
    );
    assert!(text.contains("peak=1040KiB,1100KiB*2"), "{text}");
    let (code, report, words) = gate(&project, &["a1"]);
    assert_eq!((code, &report["answer"]), (0, &json!("pass")), "{words}");
    let baseline = &report["scenarios"][0]["baseline"];
    assert_eq!(baseline["is"], "compared", "{words}");
    assert_eq!(
        baseline["metrics_judged"], baseline["metrics_exist"],
        "{words}"
    );
    // The same runs again change nothing.
    let again = project.call(&["bless", "a1", "a2", "a3", "--reason", "the first one"]);
    expect(
        &again,
        0,
        &["nothing in it is outside of what the last one expected"],
    );
    assert_eq!(project.read(file), text);
}

#[test]
fn in_ci_nothing_is_blessed() {
    let project = Project::new();
    project.three_clean("a");
    let words = ["bless", "a1", "a2", "a3", "--reason", "no"];
    let done = project.call_with(&words, &[("CI", "true")]);
    expect(
        &done,
        2,
        &["this is CI (CI is set), where nothing is blessed"],
    );
    assert_eq!(project.baselines(), [""; 0]);
    expect(&project.call_with(&words, &[("CI", "false")]), 0, &[]);
}

#[test]
fn runs_that_are_no_measure_are_not_blessed() {
    let project = Project::new();
    project.three_clean("a");
    project.run("leak", "device", |run| run["plan"]["name"] = "a".into());
    project.run("crash", "clean", |run| {
        run["plan"]["name"] = "a".into();
        run["verdict"]["class"] = "crash".into();
    });
    for (runs, message) in [
        (
            &["a1", "a2"][..],
            "2 runs of `a`, and a baseline is of at least 3",
        ),
        (
            &["a1", "a2", "a3", "leak"],
            "leak is `leak`: device memory born in phase unattributed",
        ),
        (
            &["a1", "a2", "a3", "crash"],
            "such a run is no measure for others",
        ),
        (&["a1", "a2", "missing"], "cannot use the run in missing"),
    ] {
        let words: Vec<&str> = ["bless", "--reason", "why"]
            .into_iter()
            .chain(runs.iter().copied())
            .collect();
        expect(&project.call(&words), 2, &[message]);
    }
    expect(
        &project.call(&["bless", "a1", "a2", "a3", "--reason", " "]),
        2,
        &["the reason is empty"],
    );
    assert_eq!(project.baselines(), [""; 0]);
}

#[test]
fn a_leak_fails_once_however_many_runs_found_it() {
    let project = blessed();
    for name in ["l1", "l2"] {
        project.run(name, "device", |run| run["plan"]["name"] = "a".into());
    }
    let (code, report, words) = gate(&project, &["l1", "a1", "l2"]);
    assert_eq!(
        (code, &report["answer"]),
        (3, &json!("failed-by-verdict")),
        "{words}"
    );
    let findings = report["scenarios"][0]["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{words}");
    assert_eq!(findings[0]["identity"], "device/unattributed");
    assert_eq!(
        (&findings[0]["status"], &findings[0]["in_runs"]),
        (&json!("new"), &json!(2))
    );
    assert!(
        flat(&words).contains("leak (new, in 2 of 3 runs): device memory"),
        "{words}"
    );
}

#[test]
fn an_accepted_leak_is_known_until_it_grows_and_told_when_it_is_gone() {
    let project = Project::new();
    project.three_clean("a");
    for name in ["l1", "l2", "l3"] {
        project.run(name, "device", |run| run["plan"]["name"] = "a".into());
    }
    let words = [
        "bless",
        "l1",
        "l2",
        "l3",
        "--reason",
        "ticket 812",
        "--with-findings",
    ];
    let done = project.call(&words);
    expect(
        &done,
        0,
        &["known from now on: leak in device/unattributed, 1048576 bytes in 1 blocks per round"],
    );
    expect(
        &project.call(&["gate", "l1"]),
        0,
        &["leak (known): device memory"],
    );
    project.run("more", "device", |run| {
        run["plan"]["name"] = "a".into();
        run["verdict"]["findings"][0]["total"]["bytes"] = (32 << 20).into();
    });
    expect(
        &project.call(&["gate", "more"]),
        3,
        &["leak (worse than known)"],
    );
    project.run("other", "pool", |run| run["plan"]["name"] = "a".into());
    expect(
        &project.call(&["gate", "other"]),
        3,
        &[
            "leak (new)",
            "a known finding is gone, bless to forget it: leak in device/unattributed",
        ],
    );
}

#[test]
fn a_baseline_of_another_machine_is_refused_with_what_differs() {
    let project = blessed();
    project.run("here", "clean", |run| {
        run["plan"]["name"] = "a".into();
        run["machine"]["kernel"] = "6.1.0-32-amd64".into();
        run["machine"]["gpus"] = json!(["NVIDIA H200"]);
    });
    let done = project.call(&["gate", "here"]);
    expect(
        &done,
        5,
        &[
            "is of another machine",
            "kernel 6.18 and 6.1; gpus none and NVIDIA H200",
            "cargo tidegate bless here",
        ],
    );
    // A patch of the same kernel is the same machine.
    project.run("patched", "clean", |run| {
        run["plan"]["name"] = "a".into();
        run["machine"]["kernel"] = "6.18.99".into();
    });
    expect(&project.call(&["gate", "patched"]), 0, &[]);
}

#[test]
fn what_was_not_given_is_said_and_is_inconclusive() {
    let project = blessed();
    project.three_clean("b");
    expect(
        &project.call(&["bless", "b1", "b2", "b3", "--reason", "second"]),
        0,
        &[],
    );
    project.write(
        "tidegate.toml",
        "[[budget]]\nscenario = \"c\"\npeak = \"1GiB\"\n",
    );
    let done = project.call(&["gate", "a1"]);
    expect(
        &done,
        5,
        &[
            "gate: inconclusive: `b` and `c`; 1 of 3 scenarios judged",
            "no run of `b` was given, and it has a baseline",
            "no run of `c` was given, and tidegate.toml has a budget for it",
        ],
    );
}

#[test]
fn budgets_are_kept_broken_or_not_known() {
    let project = blessed();
    let with = |budget: &str| {
        project.write("tidegate.toml", &format!("[[budget]]\n{budget}\n"));
        project.call(&["gate", "a1"])
    };
    expect(
        &with("layer = \"device\"\npeak = \"2MiB\""),
        0,
        &["budget kept: peak of device: 1.1 MiB of 2.0 MiB"],
    );
    expect(
        &with("scenario = \"a\"\nlayer = \"device\"\npeak = \"1MiB\""),
        4,
        &[
            "gate: failed by policy: `a`",
            "budget: peak of device: 1.1 MiB of 1.0 MiB, over its budget",
        ],
    );
    expect(
        &with("scenario = \"b*\"\nlayer = \"device\"\npeak = \"1MiB\""),
        0,
        &[],
    );
    expect(
        &with("resident = \"100MiB\""),
        4,
        &["resident memory of the whole scenario: 138.7 MiB of 100.0 MiB"],
    );
    expect(
        &with("layer = \"gpu-streams\"\nblocks = 1"),
        0,
        &["blocks per round of gpu-streams: 1 of 1"],
    );
    expect(
        &with("phase = \"mms\"\npeak = 1"),
        5,
        &["names the phase `mms`, which no run has; there are unattributed"],
    );
    // Of several layers the highest peak and the sum are known, and not what they came to.
    expect(
        &with("phase = \"unattributed\"\npeak = \"49.5MiB\""),
        5,
        &["may be within its budget or over it"],
    );
    expect(
        &with("phase = \"unattributed\"\npeak = \"44MiB\""),
        4,
        &["peak of phase unattributed: between"],
    );
}

#[test]
fn a_relative_budget_goes_before_the_spread_and_below_it_nothing_fails() {
    let project = blessed();
    let with = |share: &str, blocks: i64| {
        project.write(
            "tidegate.toml",
            &format!("[[budget]]\nlayer = \"device\"\nblocks = \"{share}\"\n"),
        );
        project.run("now", "clean", |run| {
            run["plan"]["name"] = "a".into();
            phase_book(run, "device")["allocated"]["blocks"] = blocks.into();
        });
        project.call(&["gate", "now"])
    };
    expect(
        &with("+50%", 48),
        0,
        &["budget kept: blocks per round of device: 3 of 3"],
    );
    expect(
        &with("+49%", 48),
        4,
        &["blocks per round of device: 3 of 3.0, over its budget"],
    );
    // The peak varied by 64 KiB among the runs: a budget cannot be kept more exactly than that.
    project.write(
        "tidegate.toml",
        "[[budget]]\nlayer = \"device\"\npeak = \"+0%\"\n",
    );
    project.run("now", "clean", |run| {
        run["plan"]["name"] = "a".into();
        *phase(run, "device") = 1_200_000.into();
    });
    expect(
        &project.call(&["gate", "now"]),
        0,
        &["above its budget and within the baseline's spread"],
    );
}

#[test]
fn what_is_above_the_baselines_spread_fails_if_it_is_memory_and_is_noted_if_it_is_not() {
    let project = blessed();
    project.run("peak", "clean", |run| {
        run["plan"]["name"] = "a".into();
        *phase(run, "device") = 9_000_000.into();
    });
    expect(
        &project.call(&["gate", "peak"]),
        4,
        &["not let through: device of phase unattributed: peak 8.6 MiB, was 1.1 MiB ("],
    );
    project.run("blocks", "clean", |run| {
        run["plan"]["name"] = "a".into();
        phase_book(run, "device")["allocated"]["blocks"] = 48.into();
    });
    expect(
        &project.call(&["gate", "blocks"]),
        0,
        &["noted: device of phase unattributed: blocks per round 3, was 2 (never varied)"],
    );
    project.write("tidegate.toml", "[baselines]\nfails-on = [\"blocks\"]\n");
    expect(&project.call(&["gate", "blocks"]), 4, &["not let through"]);
    expect(
        &project.call(&["gate", "peak"]),
        0,
        &["noted: device of phase unattributed: peak"],
    );
}

#[test]
fn a_policy_says_what_its_classes_do() {
    let project = blessed();
    project.run("leak", "device", |run| run["plan"]["name"] = "a".into());
    project.write(
        "tidegate.toml",
        "[classes]\nleak = \"pass\"\n[baselines]\nfails-on = []\n",
    );
    expect(
        &project.call(&["gate", "leak"]),
        0,
        &["leak (let through by the policy)"],
    );
    project.run("kept", "clean", |run| {
        run["plan"]["name"] = "a".into();
        run["verdict"]["class"] = "retention".into();
        run["verdict"]["sentence"] = "the allocator keeps 3 MiB".into();
    });
    expect(
        &project.call(&["gate", "kept"]),
        0,
        &["the allocator keeps 3 MiB"],
    );
    project.write("tidegate.toml", "[classes]\nretention = \"fail\"\n");
    expect(
        &project.call(&["gate", "kept"]),
        4,
        &["retention (new): the allocator keeps 3 MiB"],
    );
}

#[test]
fn a_policys_suppression_lets_through_until_its_last_day() {
    let project = blessed();
    project.run("leak", "device", |run| run["plan"]["name"] = "a".into());
    let rule = "[[suppression]]\nleak = \"*\"\nlayer = \"device\"\nreason = \"ticket 812\"\nuntil = \"2027-03-31\"\n";
    let policy = format!("[baselines]\nfails-on = []\n{rule}");
    project.write("tidegate.toml", &policy);
    let on = |day: &str| project.call(&["gate", "leak", "--as-of", day]);
    expect(
        &on("2027-03-31"),
        0,
        &[
            "leak (suppressed): device memory",
            "leak:* (tidegate.toml:3) until 2027-03-31: ticket 812",
        ],
    );
    expect(
        &on("2027-04-01"),
        3,
        &[
            "leak (new)",
            "suppression leak:* (tidegate.toml:3) has expired on 2027-03-31",
        ],
    );
    project.write("tidegate.toml", &policy.replace("device", "pinned"));
    expect(
        &on("2027-03-31"),
        3,
        &["is unused: nothing that it matches leaked"],
    );
}

#[test]
fn a_suppression_by_stack_lets_through_what_its_sites_lost_and_no_more() {
    let project = blessed();
    let explained = |name: &str, suppressed: i64| {
        project.run(name, "device", |run| {
            run["plan"]["name"] = "a".into();
            let site = |function: &str, bytes: i64| {
                json!({
                    "layer": "device", "phase": "unattributed", "site": function, "cut": false, "yours": 0,
                    "frames": [{"function": function, "file": "/src/k.cpp", "line": 1, "column": null,
                        "inlined": false, "object": "prover", "kind": "yours", "source": null}],
                    "allocated": {"bytes": bytes, "blocks": 1}, "live": [], "per_round": null, "left": [],
                    "grown": {"bytes": bytes, "blocks": i64::from(bytes > 0)},
                })
            };
            let all = 16 << 20;
            run["explanation"] = json!({
                "every_site": false, "seconds": 1.0, "warmup": 4, "rounds": 20, "captures": 2, "dropped": 0,
                "coverage": [{"layer": "device", "phase": "unattributed",
                    "grown": {"bytes": all, "blocks": 2}, "explained": {"bytes": all, "blocks": 2}}],
                "sites": [site("load_kernels", suppressed), site("prove", all - suppressed)],
                "sites_exist": 2, "missing": [],
            });
        });
    };
    project.write(
        "known.supp",
        "#: reason = ticket 812\n#: until = 2027-03-31\nleak:^load_kernels$\n",
    );
    project.write(
        "tidegate.toml",
        "suppressions = \"known.supp\"\n[baselines]\nfails-on = []\n",
    );
    explained("all", (16 << 20) - 8);
    expect(
        &project.call(&["gate", "all"]),
        0,
        &["leak (suppressed)", "leak:^load_kernels$ (known.supp:3)"],
    );
    explained("half", 8 << 20);
    expect(&project.call(&["gate", "half"]), 3, &["leak (new)"]);
}

#[test]
fn a_crash_and_an_unclear_run_are_no_pass() {
    let project = blessed();
    let run = |name: &str, class: &str| {
        project.run(name, "clean", |run| {
            run["plan"]["name"] = "a".into();
            run["verdict"]["class"] = class.into();
            run["verdict"]["sentence"] = format!("it was {class}").into();
        });
    };
    run("crash", "crash");
    run("unclear", "inconclusive");
    expect(
        &project.call(&["gate", "a1", "crash"]),
        6,
        &[
            "gate: the workload crashed: `a`",
            "crash: it was crash (crash)",
        ],
    );
    expect(
        &project.call(&["gate", "a1", "unclear"]),
        5,
        &["unclear: it was inconclusive (inconclusive)"],
    );
    run("ceiling", "ceiling");
    let done = project.call(&["gate", "crash", "ceiling"]);
    expect(&done, 3, &["ceiling (new, in 1 of 2 runs): it was ceiling"]);
}

#[test]
fn runs_of_other_numbers_of_rounds_are_compared_per_round_and_it_is_said() {
    let project = blessed();
    project.run("short", "clean", |run| {
        run["plan"]["name"] = "a".into();
        run["books"]["rounds"].as_array_mut().unwrap().truncate(12);
        for book in run["books"]["phases"].as_array_mut().unwrap() {
            for amount in ["bytes", "blocks"] {
                let half = book["allocated"][amount].as_i64().unwrap() / 2;
                book["allocated"][amount] = half.into();
            }
        }
    });
    let done = project.call(&["gate", "short"]);
    expect(
        &done,
        0,
        &["OLD has 16 measured rounds and NEW 8: what is left is of as many"],
    );
}

#[test]
fn mistakes_in_policies_and_baselines_are_told_with_their_place() {
    let project = blessed();
    project.write("sub/x", "");
    project.write(
        "tidegate.toml",
        "[[budget]]\nscenario = \"a\"\npeek = \"1GiB\"\n",
    );
    let done = project.call(&["gate", "a1"]);
    expect(
        &done,
        2,
        &["tidegate.toml:3:1: unknown field `peek`, expected one of `scenario`"],
    );
    project.write("tidegate.toml", "");
    let file = project.baselines().remove(0);
    let text = project.read(&file).replace("rounds 16", "rounds many");
    project.write(&file, &text);
    let done = project.call(&["gate", "a1"]);
    expect(&done, 2, &[".baseline:7:1: `many` is no number of rounds"]);
}
