//! One test per behaviour that a gate must judge right.

use super::simulated::{FOR_EVER, Program, trim};
use super::*;
use crate::books::{
    Amount, Card, Gauges, Health, Layer, LimitKind, MapKind, MapSeries, Probe, ProbeKind,
    QueueDesign, QueueSample, Refusal, Series, Settle, SiteSeries, Survivors,
};

use Layer::{NativeHeap, RustHeap};

fn verdict(books: &Books) -> Verdict {
    judge(books, &Settings::default())
}

fn class(program: &Program) -> Class {
    verdict(&program.books()).class
}

/// The survivors of the healthy prover in the design's facts.
fn healthy_prover(rounds: u32) -> Program {
    let mut program = Program::new(1, rounds);
    program
        .block(RustHeap, "unattributed", 1, FOR_EVER, 900_000, 16_629)
        .keeps(RustHeap, "unattributed", |round| match round {
            2 => (43 * 88, 43),
            3 => (28 * 88, 28),
            4 => (14 * 88, 14),
            round if round % 13 == 0 => (104, 1),
            _ => (0, 0),
        })
        .rolls(RustHeap, "unattributed", |_| (1528, 1))
        .rolls(RustHeap, "synthesis", |_| (19 * 64, 19));
    program
}

#[test]
fn a_run_that_gives_all_back_is_clean() {
    let mut program = Program::new(1, 8);
    program.block(RustHeap, "synthesis", 1, FOR_EVER, 4096, 3);
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Clean);
    assert_eq!(verdict.judged.rounds_judged, 7);
    assert_eq!(verdict.judged.series_judged, verdict.judged.series_exist);
    let power = verdict.power.expect("seven rounds see something");
    assert_eq!((power.blocks_per_round, power.bytes_per_round), (1, 16));
}

#[test]
fn a_block_lost_per_round_is_a_leak_of_exactly_that() {
    let mut program = Program::new(2, 8);
    program.keeps(NativeHeap, "msm_g1", |_| (96, 1));
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    let finding = &verdict.findings[0];
    assert_eq!(
        (finding.layer, finding.phase.as_str()),
        (NativeHeap, "msm_g1")
    );
    assert_eq!(finding.driver, Driver::PerRound);
    assert_eq!(finding.per_driver, Some(Amount::new(96, 1)));
    assert_eq!(finding.born_in, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(finding.since_round, Some(1));
    assert_eq!(finding.total, Amount::new(96 * 6, 6));
    assert_eq!(finding.fingerprint, "native-heap/msm_g1");
    assert_eq!(
        verdict.sentence,
        "native-heap memory born in phase msm_g1 is never released: \
         96 bytes in 1 block per round, since round 1 (576 bytes in 6 rounds)"
    );
}

#[test]
fn twenty_four_bytes_per_round_are_a_leak() {
    let mut program = Program::new(1, 8);
    program.keeps(NativeHeap, "msm_g1", |_| (24, 1));
    assert_eq!(class(&program), Class::Leak);
}

#[test]
fn a_leak_beside_the_first_uses_of_the_warm_rounds_is_exact() {
    let mut program = healthy_prover(8);
    program.keeps(RustHeap, "unattributed", |_| (96, 2));
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(96, 2)));
    assert_eq!(verdict.findings[0].since_round, Some(5));
}

#[test]
fn three_equal_steps_after_a_warm_up_decide_nothing() {
    let mut program = healthy_prover(7);
    program.keeps(RustHeap, "unattributed", |_| (96, 2));
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Inconclusive);
    assert!(verdict.missing[0].contains("2 rounds more would decide"));
}

#[test]
fn a_leak_below_counts_that_vary_needs_more_rounds() {
    let hidden = |rounds| {
        let mut program = Program::new(1, rounds);
        program
            .keeps(RustHeap, "ntt", |_| (64, 1))
            .rolls(RustHeap, "ntt", |round| {
                let n = i64::from((round * 7919).wrapping_mul(2_654_435_761) >> 16) % 40;
                (n * 80, n)
            });
        program.books()
    };
    assert_eq!(verdict(&hidden(10)).class, Class::Inconclusive);
    assert!(matches!(
        next_step(&hidden(10), &Settings::default()),
        Step::MoreRounds { .. }
    ));
    let found = verdict(&hidden(400));
    assert_eq!(found.class, Class::Leak);
    assert_eq!(found.findings[0].per_driver, Some(Amount::new(64, 1)));
}

#[test]
fn a_loss_below_batches_that_come_early_or_late_is_a_leak() {
    // A batch of ten waits at the end of most rounds; one of each is lost.
    let books = |rounds: u32| {
        let mut program = Program::new(2, rounds);
        program
            .keeps(NativeHeap, "unattributed", |round| match round % 11 {
                0 => (0, 0),
                5 => (1_400, 2),
                _ => (700, 1),
            })
            .rolls(NativeHeap, "unattributed", |round| {
                let waits = !matches!(round, 11 | 14..=16 | 20 | 25);
                (if waits { 7_000 } else { 0 }, if waits { 10 } else { 0 })
            });
        program.books()
    };
    let found = verdict(&books(26));
    assert_eq!(found.class, Class::Leak, "{}", found.sentence);
    // The same batches without a loss.
    for rounds in 10..=60 {
        let mut program = Program::new(2, rounds);
        program.rolls(NativeHeap, "unattributed", |round| {
            let blocks = i64::from(round.wrapping_mul(2_654_435_761) >> 28);
            (700 * blocks, blocks)
        });
        let verdict = verdict(&program.books());
        assert!(verdict.class.passes(), "{rounds}: {}", verdict.sentence);
    }
}

#[test]
fn a_leak_is_exact_below_blocks_of_random_size() {
    let mut program = Program::new(2, 8);
    program
        .keeps(RustHeap, "synthesis", |_| (24, 1))
        .rolls(RustHeap, "synthesis", |round| {
            (i64::from(round * 7919 % 1000) * 1000, 1)
        });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(24, 1)));
    // The last round's may be blocks that the next would have replaced.
    assert_eq!(verdict.findings[0].born_in, [1, 2, 3, 4, 5, 6, 7]);
}

/// A block that each round replaces with one of another size.
fn of_any_size(program: &mut Program) {
    program.rolls(RustHeap, "synthesis", |round| {
        (i64::from(round * 7919 % 1000) * 1000, 1)
    });
}

#[test]
fn a_leak_that_begins_late_is_of_the_rounds_since_then() {
    let mut program = Program::new(1, 16);
    program.keeps(RustHeap, "synthesis", |round| {
        if round > 5 { (24, 1) } else { (0, 0) }
    });
    of_any_size(&mut program);
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    let since: Vec<u32> = (6..16).collect();
    assert_eq!(verdict.findings[0].born_in, since);
    assert_eq!(verdict.findings[0].total, Amount::new(240, 10));
}

#[test]
fn a_leak_per_error_is_exact_below_blocks_of_random_size() {
    let errors = [0, 0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 0];
    let mut program = Program::new(1, 12);
    program.errors = errors.to_vec();
    program.keeps(RustHeap, "synthesis", |round| {
        let n = errors[round as usize - 1] as i64;
        (n * 640, n)
    });
    of_any_size(&mut program);
    let verdict = verdict(&program.books());
    assert_eq!(verdict.findings[0].driver, Driver::PerError);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(640, 1)));
}

#[test]
fn three_additions_below_blocks_of_random_size_are_a_leak_and_two_are_not() {
    let lost_in = |rounds, lost: fn(u32) -> bool| {
        let mut program = Program::new(1, rounds);
        program.keeps(RustHeap, "synthesis", |round| {
            if lost(round) { (4096, 1) } else { (0, 0) }
        });
        of_any_size(&mut program);
        verdict(&program.books())
    };
    let three = lost_in(14, |round| round % 4 == 0);
    assert_eq!(three.class, Class::Leak, "{}", three.sentence);
    assert_eq!(three.findings[0].driver, Driver::EveryKthRound(4));
    assert_eq!(three.findings[0].per_driver, Some(Amount::new(4096, 1)));
    assert_ne!(lost_in(11, |round| round % 4 == 0).class, Class::Leak);
    // Two blocks each time, the last time in the round before the last.
    let mut program = Program::new(1, 13);
    program.keeps(RustHeap, "synthesis", |round| {
        if round % 4 == 0 { (4096, 2) } else { (0, 0) }
    });
    of_any_size(&mut program);
    assert_eq!(class(&program), Class::Leak);
    // After first uses, in three quarters of the rounds.
    let mut program = Program::new(1, 14);
    program
        .block(RustHeap, "synthesis", 2, FOR_EVER, 1000, 5)
        .block(RustHeap, "synthesis", 4, FOR_EVER, 900, 3)
        .keeps(RustHeap, "synthesis", |round| {
            if matches!(round, 6 | 9 | 12) {
                (4096, 1)
            } else {
                (0, 0)
            }
        });
    of_any_size(&mut program);
    assert_eq!(class(&program), Class::Leak);
    // Three equal steps after a pause.
    assert_ne!(lost_in(7, |round| round > 3).class, Class::Leak);
    // Every round until the last two.
    assert_ne!(lost_in(12, |round| round < 11).class, Class::Leak);
    // Three additions in the last third of the run.
    assert_ne!(
        lost_in(24, |round| round > 16 && round % 2 == 0).class,
        Class::Leak
    );
}

#[test]
fn a_leak_per_round_is_told_from_a_block_that_is_there_in_every_other_one() {
    let mut program = Program::new(1, 12);
    program
        .keeps(RustHeap, "synthesis", |_| (64, 1))
        .rolls(RustHeap, "synthesis", |round| {
            if round % 2 == 0 { (100, 1) } else { (0, 0) }
        });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.findings[0].driver, Driver::PerRound);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(64, 1)));
}

#[test]
fn blocks_lost_beside_one_that_shrinks_are_told_by_what_is_left() {
    let mut program = Program::new(1, 12);
    program
        .keeps(RustHeap, "synthesis", |round| {
            (64 + i64::from(round * 5 % 13), 1)
        })
        .rolls(RustHeap, "synthesis", |round| {
            (100_000 - 500 * i64::from(round), 1)
        });
    let left = (2..=12).map(|round| 64 + round * 5 % 13).sum::<i64>() + 100_000 - 500 * 12;
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak, "{}", verdict.sentence);
    assert_eq!(verdict.findings[0].total, Amount::new(left, 12));
}

#[test]
fn a_block_in_every_fourth_round_is_judged_by_whole_patterns() {
    // 64 bytes with the block's own cost: at the floor of 16 per round.
    let lost = |bytes| {
        let mut program = Program::new(1, 20);
        program.keeps(RustHeap, "finish", |round| {
            if round % 4 == 1 { (bytes, 1) } else { (0, 0) }
        });
        class(&program)
    };
    assert_eq!(lost(48), Class::Leak);
    assert_eq!(lost(47), Class::Clean);
}

#[test]
fn a_rolling_block_of_constant_size_is_no_leak() {
    let mut program = Program::new(1, 8);
    program.rolls(RustHeap, "synthesis", |_| (1528, 1));
    assert_eq!(class(&program), Class::Clean);
}

#[test]
fn a_rolling_block_that_comes_back_larger_is_a_leak() {
    let mut program = Program::new(1, 8);
    program.rolls(RustHeap, "synthesis", |round| (i64::from(round) * 320, 1));
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(320, 0)));
    assert_eq!(verdict.findings[0].born_in, [2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_block_that_a_realloc_enlarges_each_round_is_a_leak() {
    let mut program = Program::new(1, 8);
    program.enlarges(RustHeap, "finish", |_| 64);
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(64, 0)));
}

#[test]
fn blocks_that_the_last_round_holds_by_chance_hide_no_block_that_becomes_larger() {
    // A shell whose string grows, and a child of it that has just begun.
    let with_child = |each: i64| {
        let mut program = Program::new(3, 30);
        program
            .rolls(NativeHeap, "shell", move |round| {
                (i64::from(round) * each, 1)
            })
            .rolls(NativeHeap, "shell", |round| match round % 7 {
                0 => (0, 0),
                2 => (24, 1),
                _ => (48, 2),
            })
            .block(NativeHeap, "shell", 30, 31, 12_000, 137);
        verdict(&program.books())
    };
    let grows = with_child(10_000);
    assert_eq!(grows.class, Class::Leak, "{}", grows.sentence);
    let stays = with_child(0);
    assert!(stays.class.passes(), "{}", stays.sentence);
}

#[test]
fn a_rolling_block_of_random_size_is_no_leak() {
    for seed in 0..200u32 {
        let mut program = Program::new(1, 8 + seed % 50);
        program.rolls(RustHeap, "synthesis", |round| {
            let mixed = (round + seed * 101).wrapping_mul(2_654_435_761) >> 12;
            (i64::from(mixed % 100_000), 1)
        });
        let class = class(&program);
        assert!(class.passes(), "seed {seed}: {class}");
    }
}

#[test]
fn double_buffers_are_no_leak() {
    let mut program = Program::new(1, 9);
    for round in 1..=9 {
        program.block(RustHeap, "ntt", round, round + 2, 1 << 20, 1);
        if round % 2 == 0 {
            program.block(RustHeap, "ntt", round, round + 1, 4096, 1);
        }
    }
    assert!(class(&program).passes());
}

#[test]
fn growth_at_one_round_is_a_cache_whenever_it_comes() {
    for at in 2..=20 {
        let mut program = Program::new(1, 20);
        program.block(RustHeap, "synthesis", at, FOR_EVER, 5000, 7);
        let verdict = verdict(&program.books());
        assert_eq!(verdict.class, Class::Cache, "round {at}");
        assert!(
            verdict
                .notes
                .iter()
                .any(|n| n.amount == Amount::new(5000, 7)),
            "{at}"
        );
    }
}

#[test]
fn a_cache_that_fills_evenly_and_stops_is_a_cache() {
    for full_at in 5..=20 {
        let mut program = Program::new(1, full_at + 6);
        program.keeps(RustHeap, "synthesis", |round| {
            if round <= full_at { (700, 1) } else { (0, 0) }
        });
        assert_eq!(class(&program), Class::Cache, "full at {full_at}");
    }
}

#[test]
fn a_window_of_the_last_rounds_is_no_leak() {
    let mut program = Program::new(1, 20);
    for round in 1..=20 {
        program.block(RustHeap, "synthesis", round, round + 5, 640, 1);
    }
    let verdict = verdict(&program.books());
    assert_eq!(
        verdict.class,
        Class::Cache,
        "it fills until round 5 and is flat then"
    );
}

#[test]
fn the_healthy_prover_passes_at_any_number_of_rounds() {
    for rounds in 6..=130 {
        let verdict = verdict(&healthy_prover(rounds).books());
        assert!(
            verdict.class.passes(),
            "{rounds} rounds: {}",
            verdict.sentence
        );
    }
    let verdict = verdict(&healthy_prover(60).books());
    assert_eq!(verdict.class, Class::Cache);
}

#[test]
fn a_hundred_bytes_every_thirteen_rounds_are_noted() {
    let mut program = Program::new(1, 60);
    program.keeps(RustHeap, "finish", |round| {
        if round % 13 == 0 { (104, 1) } else { (0, 0) }
    });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Clean);
    assert!(
        verdict.notes[0].sentence.contains("416 bytes in 4 blocks"),
        "{:?}",
        verdict.notes
    );
}

#[test]
fn a_leak_in_every_kth_round_is_found_with_its_period() {
    for k in 2..=16u32 {
        let mut program = Program::new(1, 3 * k + 2);
        program
            .keeps(RustHeap, "finish", |round| {
                if round % k == 0 { (4096, 2) } else { (0, 0) }
            })
            .rolls(RustHeap, "finish", |_| (100, 1));
        let verdict = verdict(&program.books());
        assert_eq!(verdict.class, Class::Leak, "every {k}th");
        assert_eq!(verdict.findings[0].driver, Driver::EveryKthRound(k));
        assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(4096, 2)));
        assert_eq!(verdict.findings[0].born_in[0], k);
    }
}

#[test]
fn a_leak_per_error_is_told_from_one_per_round() {
    let mut program = Program::new(1, 10);
    program.errors = vec![0, 0, 1, 0, 0, 2, 0, 0, 1, 0];
    let errors = program.errors.clone();
    program.keeps(RustHeap, "finish", |round| {
        let n = errors[round as usize - 1] as i64;
        (n * 640, n)
    });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    let finding = &verdict.findings[0];
    assert_eq!(finding.driver, Driver::PerError);
    assert_eq!(finding.per_driver, Some(Amount::new(640, 1)));
    assert_eq!(finding.born_in, [3, 6, 9]);
}

#[test]
fn a_leak_per_thread_is_told_where_the_numbers_of_threads_differ() {
    let created = [3, 4, 7, 8, 10, 13, 14, 16];
    let mut program = Program::new(1, 8);
    program.threads_created = created.to_vec();
    program.keeps(NativeHeap, "msm_g1", |round| {
        let before = if round == 1 {
            0
        } else {
            created[round as usize - 2]
        };
        let n = (created[round as usize - 1] - before) as i64;
        (n * 112, n)
    });
    let verdict_1 = verdict(&program.books());
    assert_eq!(verdict_1.findings[0].driver, Driver::PerThread);
    assert_eq!(verdict_1.findings[0].per_driver, Some(Amount::new(112, 1)));

    let mut program = Program::new(1, 8);
    program.threads_created = (1..=8).map(|n| n * 4).collect();
    program.keeps(NativeHeap, "msm_g1", |_| (448, 4));
    let verdict_2 = verdict(&program.books());
    assert_eq!(verdict_2.findings[0].driver, Driver::PerRound);
    assert_eq!(verdict_2.findings[0].also_fits, [Driver::PerThread]);
}

#[test]
fn a_leak_per_second_is_told_where_the_lengths_of_rounds_differ() {
    let lengths = [1.0, 3.0, 1.0, 2.0, 4.0, 1.0, 2.0, 3.0, 1.0];
    let mut program = Program::new(1, 9);
    let mut at = 0.0;
    program.seconds = lengths
        .iter()
        .map(|length| {
            at += length;
            at
        })
        .collect();
    program.keeps(RustHeap, "unattributed", |round| {
        let ticks = lengths[round as usize - 1] as i64 * 10 + i64::from(round % 2);
        (ticks * 48, ticks)
    });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].driver, Driver::PerSecond);
    assert_eq!(verdict.findings[0].per_driver, None);
}

#[test]
fn uneven_growth_needs_more_rounds_than_even_growth() {
    let sizes = [3, 5, 4, 7, 2, 6, 3, 5, 8, 4, 6, 5, 7, 3, 4, 6];
    let uneven = |rounds| {
        let mut program = Program::new(1, rounds);
        program.keeps(RustHeap, "synthesis", |round| {
            let n = sizes[round as usize - 1];
            (n * 48, n)
        });
        program.books()
    };
    let early = verdict(&uneven(8));
    assert_eq!(early.class, Class::Inconclusive);
    assert!(
        early.missing[0].contains("5 rounds more would decide"),
        "{:?}",
        early.missing
    );
    assert!(matches!(
        next_step(&uneven(8), &Settings::default()),
        Step::MoreRounds { rounds: 5, .. }
    ));
    assert_eq!(verdict(&uneven(16)).class, Class::Leak);
}

#[test]
fn blocks_of_random_size_lost_one_per_round_are_a_leak() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "synthesis", |round| {
        (i64::from(round.wrapping_mul(2_654_435_761) >> 20), 1)
    });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].per_driver, None);
    assert_eq!(verdict.findings[0].driver, Driver::PerRound);
}

/// 480 entries, twelve random keys in each round: it fills ever slower.
fn slow_cache(rounds: u32) -> Program {
    let mut program = Program::new(1, rounds);
    let mut seen = std::collections::BTreeSet::new();
    let mut state = 12_345u64;
    for round in 1..=rounds {
        for _ in 0..12 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if seen.insert((state >> 33) % 480) {
                program.block(RustHeap, "synthesis", round, FOR_EVER, 7 << 20, 1);
            }
        }
    }
    program
}

#[test]
fn a_large_cache_that_still_fills_is_not_called_a_leak() {
    for rounds in [30, 40, 60, 80] {
        let class = class(&slow_cache(rounds));
        assert_eq!(class, Class::Inconclusive, "{rounds} rounds");
    }
    let mut books = slow_cache(60).books();
    let live = books.series[0].live[59];
    books.probes.push(Probe {
        kind: ProbeKind::Replay,
        seconds: 1.0,
        live_before: live,
        live_after: live,
        before: None,
        after: None,
    });
    assert_eq!(
        verdict(&books).class,
        Class::Cache,
        "the same keys add nothing"
    );
}

#[test]
fn a_container_that_doubles_is_a_leak_after_four_doublings() {
    let push = |rounds| {
        let mut program = Program::new(1, rounds);
        program.enlarges(RustHeap, "finish", |round| {
            if round.is_power_of_two() {
                i64::from(round) * 64
            } else {
                0
            }
        });
        program.books()
    };
    assert_eq!(verdict(&push(60)).class, Class::Leak);
    assert_eq!(verdict(&push(12)).class, Class::Cache);
    assert_eq!(verdict(&push(30)).findings[0].since_round, Some(2));
}

#[test]
fn blocks_that_move_from_one_phase_to_another_are_no_leak() {
    let mut program = Program::new(1, 10);
    for n in 1..=12 {
        program.block(RustHeap, "a", 1, n + 1, 500, 1);
        program.block(RustHeap, "b", n + 1, FOR_EVER, 500, 1);
    }
    let verdict = verdict(&program.books());
    assert!(verdict.class.passes(), "{}", verdict.sentence);
    let moved = |note: &Note| note.sentence.contains("what another phase gave up");
    assert!(verdict.notes.iter().any(moved), "{:?}", verdict.notes);
}

#[test]
fn what_one_layer_gives_up_makes_up_for_no_other() {
    let moves = |from, to| {
        let mut program = Program::new(1, 10);
        for n in 1..=12 {
            program.block(from, "a", 1, n + 1, 500, 1);
            program.block(to, "b", n + 1, FOR_EVER, 500, 1);
        }
        verdict(&program.books())
    };
    let pinned = moves(Layer::Pinned, Layer::Pinned);
    assert!(pinned.class.passes(), "{}", pinned.sentence);
    // Both are malloc's: one gives up what the other takes.
    let heaps = moves(RustHeap, NativeHeap);
    assert!(heaps.class.passes(), "{}", heaps.sentence);
    assert_eq!(moves(RustHeap, Layer::Pinned).class, Class::Leak);
    assert_eq!(moves(Layer::Pinned, RustHeap).class, Class::Leak);
}

#[test]
fn what_one_site_gives_up_makes_up_for_no_other_phase() {
    let mut program = Program::new(1, 10);
    program.keeps(RustHeap, "b", |_| (500, 1));
    program.block(RustHeap, "a", 1, FOR_EVER, 6000, 12);
    let mut books = program.books();
    let site = |site: &str, blocks: fn(i64) -> i64| SiteSeries {
        layer: RustHeap,
        phase: "a".to_owned(),
        site: site.to_owned(),
        live: (1..=10)
            .map(|round| Amount::new(500 * blocks(round), blocks(round)))
            .collect(),
    };
    books.sites = vec![
        site("falls", |round| 12 - round),
        site("rises", |round| round),
    ];
    let verdict = verdict(&books);
    assert_eq!(verdict.class, Class::Leak);
    assert!(verdict.findings.iter().any(|finding| finding.phase == "b"));
}

#[test]
fn a_leak_that_no_single_phase_carries_is_found_in_the_layer() {
    let mut program = Program::new(1, 9);
    let phases = ["a", "b", "c", "a", "c", "b", "b", "a", "c"];
    for round in 1..=9u32 {
        program.block(
            RustHeap,
            phases[round as usize - 1],
            round,
            FOR_EVER,
            400,
            2,
        );
    }
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.findings[0].phase, SEVERAL_PHASES);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(400, 2)));
}

#[test]
fn a_site_is_named_where_sites_were_recorded() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "finish", |_| (128, 1));
    let mut books = program.books();
    books.sites.push(SiteSeries {
        layer: RustHeap,
        phase: "finish".to_owned(),
        site: "prover::finish::h0123456789abcdef".to_owned(),
        live: books.series[0].live.clone(),
    });
    let verdict = verdict(&books);
    assert_eq!(verdict.findings.len(), 1);
    assert_eq!(
        verdict.findings[0].fingerprint,
        "rust-heap/finish/prover::finish"
    );
    assert_eq!(
        verdict.findings[0].identity(),
        verdict.findings[0].fingerprint
    );
}

#[test]
fn a_site_takes_the_place_of_its_phase_where_it_tells_nine_tenths_of_it() {
    let layout = |blocks: i64| {
        let mut program = Program::new(1, 8);
        program.keeps(RustHeap, "finish", |_| (1000, 10));
        let mut books = program.books();
        books.sites.push(SiteSeries {
            layer: RustHeap,
            phase: "finish".to_owned(),
            site: "a".to_owned(),
            live: (1..=8)
                .map(|round| Amount::new(100 * blocks * round, blocks * round))
                .collect(),
        });
        let findings = verdict(&books).findings;
        findings
            .into_iter()
            .map(|finding| finding.site)
            .collect::<Vec<_>>()
    };
    assert_eq!(layout(9), [Some("a".to_owned())]);
    assert_eq!(layout(8), [None, Some("a".to_owned())]);
}

#[test]
fn the_rounds_of_a_handle_leak_are_those_in_which_there_were_more() {
    let mut program = Program::new(1, 12);
    program.gauges = (1..=12)
        .map(|round| Gauges {
            rss_anon: 2 << 20,
            threads: 3,
            fds: 5 + round / 2,
            ..Gauges::default()
        })
        .collect();
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::HandleLeak);
    assert_eq!(verdict.findings[0].driver, Driver::EveryKthRound(2));
    assert_eq!(verdict.findings[0].born_in, [2, 4, 6, 8, 10, 12]);
}

#[test]
fn what_single_items_lost_is_told() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "finish", |_| (192, 2));
    for round in 1..=8 {
        for item in 0..4 {
            let allocated = Amount::new(500, 5);
            let lost = if item % 2 == 0 {
                Amount::new(96, 1)
            } else {
                Amount::ZERO
            };
            program.item(round, item, "finish", allocated, allocated - lost);
        }
    }
    let books = program.books();
    let verdict = verdict(&books);
    let loss = verdict.findings[0].per_item.expect("items were named");
    assert_eq!(loss.each, Some(Amount::new(96, 1)));
    assert_eq!(loss.losing * 2, loss.items);
    let unmatched = unmatched_releases(&books);
    assert_eq!(unmatched.len(), 7 * 2);
    assert_eq!(
        unmatched[0].to_string(),
        "round 2, item 0, phase finish in rust-heap: 500 bytes in 5 blocks allocated, \
         404 bytes in 4 blocks released; 96 bytes in 1 block never released"
    );
}

#[test]
fn a_rolling_block_of_an_item_is_no_unmatched_release() {
    let mut program = Program::new(1, 6);
    for round in 1..=6 {
        let allocated = Amount::new(1528, 1);
        let released = if round == 6 { Amount::ZERO } else { allocated };
        program.item(round, 3, "finish", allocated, released);
    }
    let releases = releases(&program.books());
    assert_eq!(releases.judged, 5);
    assert!(releases.unmatched.is_empty());
    assert_eq!(releases.rolling.len(), 1);
}

/// What one item allocated (1,000 bytes in 5 blocks) in each round and did not release.
fn unreleased(rounds: u32, of: impl Fn(u32) -> (i64, i64)) -> Releases {
    let mut program = Program::new(1, rounds);
    for round in 1..=rounds {
        let (bytes, blocks) = of(round);
        let allocated = Amount::new(1000, 5);
        program.item(
            round,
            3,
            "finish",
            allocated,
            allocated - Amount::new(bytes, blocks),
        );
    }
    releases(&program.books())
}

#[test]
fn blocks_of_more_than_two_last_rounds_or_after_one_that_matched_roll_no_more() {
    let since = |first: u32| {
        unreleased(
            7,
            move |round| if round >= first { (80, 1) } else { (0, 0) },
        )
    };
    for (first, rolling) in [(7, 1), (6, 2), (5, 0), (4, 0)] {
        let releases = since(first);
        assert_eq!(releases.rolling.len(), rolling, "since round {first}");
        let unmatched = 8 - first as usize - rolling;
        assert_eq!(releases.unmatched.len(), unmatched, "since round {first}");
    }
    // Of four rounds the first is warm-up, and only one measured round matched before.
    let short = unreleased(4, |round| if round >= 3 { (80, 1) } else { (0, 0) });
    assert_eq!((short.rolling.len(), short.unmatched.len()), (0, 2));
}

#[test]
fn what_is_released_too_often_never_rolls_and_is_told_as_that() {
    let last = |bytes, blocks| {
        let releases = unreleased(6, |round| if round == 6 { (bytes, blocks) } else { (0, 0) });
        assert!(releases.rolling.is_empty());
        releases.unmatched[0].to_string()
    };
    let told = |end: &str| {
        format!(
            "round 6, item 3, phase finish in rust-heap: 1,000 bytes in 5 blocks allocated, {end}"
        )
    };
    assert_eq!(
        last(-80, -1),
        told("1,080 bytes in 6 blocks released; 80 bytes in 1 block released too often")
    );
    assert_eq!(
        last(0, -1),
        told("1,000 bytes in 6 blocks released; 0 bytes in 1 block released too often")
    );
    assert_eq!(
        last(-80, 0),
        told("1,080 bytes in 5 blocks released; 80 bytes in 0 blocks released too often")
    );
    assert_eq!(
        last(-80, 1),
        told("1,080 bytes in 4 blocks released; the difference is -80 bytes in 1 block")
    );
    assert_eq!(
        last(80, -1),
        told("920 bytes in 6 blocks released; the difference is 80 bytes in -1 blocks")
    );
}

#[test]
fn threads_lost_per_round_are_a_handle_leak_told_once() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "unattributed", |_| (272, 3));
    program.gauges = (0..8)
        .map(|n| Gauges {
            rss_anon: 2 << 20,
            threads: 3 + n,
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::HandleLeak);
    assert_eq!(verdict.findings.len(), 1);
    assert_eq!(verdict.findings[0].per_driver, Some(Amount::new(0, 1)));
    assert!(
        verdict
            .sentence
            .starts_with("threads are never closed: 1 thread per round")
    );
}

#[test]
fn threads_that_end_while_idling_are_no_handle_leak() {
    let mut program = Program::new(1, 8);
    program.gauges = (0..8)
        .map(|n| Gauges {
            rss_anon: 2 << 20,
            threads: 3 + n,
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    let mut books = program.books();
    let before = books.rounds[7].gauges.expect("gauges");
    books.probes.push(Probe {
        kind: ProbeKind::Idle,
        seconds: 2.0,
        live_before: Amount::ZERO,
        live_after: Amount::ZERO,
        before: Some(before),
        after: Some(Gauges {
            threads: 3,
            ..before
        }),
    });
    let verdict = verdict(&books);
    assert!(verdict.class.passes(), "{}", verdict.sentence);
    assert!(
        verdict.notes[0]
            .sentence
            .contains("7 threads came with the rounds")
    );
}

#[test]
fn a_cycle_that_keeps_a_file_and_a_mebibyte_is_a_leak_with_both_layers() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "finish", |_| (1 << 20, 3));
    program.gauges = (0..8)
        .map(|n| Gauges {
            rss_anon: 2 << 20,
            threads: 3,
            fds: 5 + n,
            ..Gauges::default()
        })
        .collect();
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak);
    let layers: Vec<Layer> = verdict.findings.iter().map(|f| f.layer).collect();
    assert_eq!(layers, [RustHeap, Layer::Fds]);
}

#[test]
fn a_thread_pool_that_grows_and_stops_is_a_cache() {
    let mut program = Program::new(1, 12);
    program.gauges = (0..12)
        .map(|n| Gauges {
            rss_anon: 2 << 20,
            threads: 3 + n.min(5),
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    assert!(class(&program).passes());
}

#[test]
fn what_the_threads_of_a_pool_keep_is_no_leak_per_thread() {
    let threads = |round: u64| 3 + 2 * round.min(7);
    let mut program = Program::new(2, 26);
    program.keeps(RustHeap, "unattributed", |round| match round {
        1..=7 => (2 * 3_200, 2),
        _ => (0, 0),
    });
    program.threads_created = (1..=26).map(threads).collect();
    program.gauges = (1..=26)
        .map(|round| Gauges {
            rss_anon: 2 << 20,
            threads: threads(round),
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Cache, "{}", verdict.sentence);
}

/// Descriptors after each round: 5, one lost per round, and 0 to 6 that come and go.
fn fluctuating_descriptors(rounds: u64, lost: u64) -> Books {
    let mut program = Program::new(1, rounds as u32);
    program.gauges = (1..=rounds)
        .map(|round| Gauges {
            rss_anon: 2 << 20,
            threads: 3,
            fds: 5 + lost * round + (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 7,
            ..Gauges::default()
        })
        .collect();
    program.books()
}

#[test]
fn a_descriptor_lost_among_a_fluctuating_number_is_found_with_more_rounds() {
    let few = fluctuating_descriptors(17, 1);
    assert_eq!(verdict(&few).class, Class::Inconclusive);
    assert!(matches!(
        next_step(&few, &Settings::default()),
        Step::MoreRounds { .. }
    ));
    let many = verdict(&fluctuating_descriptors(60, 1));
    assert_eq!(many.class, Class::HandleLeak, "{}", many.sentence);
    for rounds in 9..=80 {
        let verdict = verdict(&fluctuating_descriptors(rounds, 0));
        assert!(verdict.class != Class::HandleLeak, "{}", verdict.sentence);
    }
    assert_eq!(verdict(&fluctuating_descriptors(60, 0)).class, Class::Clean);
}

#[test]
fn a_refused_release_is_the_cause_of_its_leak() {
    let refusals = |n: u32| -> Vec<Refusal> {
        (1..=n)
            .map(|round| Refusal {
                round,
                layer: Layer::Pinned,
                phase: "msm_g1".to_owned(),
                call: "cudaFreeHost".to_owned(),
                status: "800 (not permitted)".to_owned(),
                count: 1,
            })
            .collect()
    };
    let mut books = Program::new(1, 8).books();
    books.refusals = refusals(8);
    let verdict_1 = verdict(&books);
    assert_eq!(verdict_1.class, Class::Leak);
    assert!(
        verdict_1
            .sentence
            .contains("cudaFreeHost was refused 8 times: 800")
    );

    let mut program = Program::new(1, 8);
    program.keeps(Layer::Pinned, "msm_g1", |_| (1 << 20, 1));
    let mut books = program.books();
    books.refusals = refusals(8);
    let verdict_2 = verdict(&books);
    assert_eq!(verdict_2.findings.len(), 1);
    assert!(verdict_2.findings[0].cause.is_some());
    assert!(
        verdict_2.notes.is_empty(),
        "told once: {:?}",
        verdict_2.notes
    );
    assert_eq!(
        verdict_2.findings[0].per_driver,
        Some(Amount::new(1 << 20, 1))
    );
}

#[test]
fn memory_that_comes_back_late_is_dwell() {
    let mut books = Program::new(1, 8).books();
    for round in &mut books.rounds {
        round.settle = Settle {
            settled: true,
            seconds: 0.4,
            before: Amount::new(9 << 20, 4),
            after: Amount::new(1 << 20, 1),
        };
    }
    let verdict = verdict(&books);
    assert_eq!(verdict.class, Class::Dwell);
    assert!(verdict.sentence.contains("8.0 MiB"), "{}", verdict.sentence);
}

#[test]
fn a_score_of_small_blocks_of_ending_threads_is_no_dwell() {
    let mut books = Program::new(1, 8).books();
    for round in &mut books.rounds {
        round.settle.before = Amount::new(1500, 20);
    }
    assert_eq!(verdict(&books).class, Class::Clean);
}

#[test]
fn releases_that_cannot_keep_up_are_a_backlog() {
    let mut books = Program::new(1, 8).books();
    books.series.push(crate::books::Series {
        layer: RustHeap,
        phase: "dealloc".to_owned(),
        live: (1..=8).map(|n| Amount::new(n << 20, n)).collect(),
    });
    books.final_settle = Some(Settle {
        settled: true,
        seconds: 4.0,
        before: Amount::new(8 << 20, 8),
        after: Amount::ZERO,
    });
    let verdict = verdict(&books);
    assert_eq!(verdict.class, Class::Backlog);
    assert!(
        verdict
            .sentence
            .contains("released more slowly than it is allocated")
    );
}

#[test]
fn a_queue_of_releases_that_nobody_waits_for_is_a_backlog_by_the_rounds_that_are_gone() {
    // Ten blocks a round; each waits for a while that is a third of its round's number.
    let mut program = Program::new(2, 26);
    for round in 1..=26 {
        for n in 0..10 {
            let waits = (round + n % 3) / 2 + 1;
            program.block(RustHeap, "dealloc", round, round + waits, 50_000, 1);
        }
    }
    let late = verdict(&program.books());
    assert_eq!(late.class, Class::Backlog, "{}", late.sentence);
    // What each round builds anew and larger is no queue.
    let mut program = Program::new(2, 26);
    program.rolls(RustHeap, "index", |round| {
        let blocks = i64::from(100 * round + (round.wrapping_mul(2_654_435_761) >> 28));
        (80 * blocks, blocks)
    });
    let rebuilt = verdict(&program.books());
    assert_eq!(rebuilt.class, Class::Leak, "{}", rebuilt.sentence);
}

#[test]
fn an_index_that_outlives_the_entries_of_a_full_cache_is_a_leak_and_no_backlog() {
    // Ten entries a round, forty at most; from then on ten records a round stay.
    let mut program = Program::new(2, 26);
    for round in 1..=26 {
        program.block(RustHeap, "cache", round, round + 4, 50_000, 10);
        if round >= 5 {
            program.block(RustHeap, "cache", round, FOR_EVER, 240, 10);
        }
    }
    let verdict = verdict(&program.books());
    assert_eq!(verdict.class, Class::Leak, "{}", verdict.sentence);
}

#[test]
fn the_stacks_of_threads_that_end_late_are_no_leak_beside_their_backlog() {
    let mut program = Program::new(1, 12);
    program.keeps(NativeHeap, "unattributed", |_| (288, 1));
    program.gauges = (1..=12)
        .map(|n| Gauges {
            rss_anon: 2 << 20,
            threads: 3 + n,
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    let mut books = program.books();
    books.series.push(crate::books::Series {
        layer: RustHeap,
        phase: "dealloc".to_owned(),
        live: (1..=12).map(|n| Amount::new(n << 22, n)).collect(),
    });
    let before = books.rounds[11].gauges.expect("gauges");
    let native = Amount::new(12 * 288, 12);
    books.probes.push(Probe {
        kind: ProbeKind::Idle,
        seconds: 4.0,
        live_before: native + Amount::new(12 << 22, 12),
        live_after: native,
        before: Some(before),
        after: Some(Gauges {
            threads: 3,
            ..before
        }),
    });
    let verdict = verdict(&books);
    assert_eq!(verdict.class, Class::Backlog, "{}", verdict.sentence);
    let kept = "what the C library keeps with the stacks of threads that are gone";
    let told = verdict
        .notes
        .iter()
        .any(|note| note.sentence.contains(kept));
    assert!(told, "{:?}", verdict.notes);
}

fn queue(waiting: &[u64], items: u64, bytes_each: u64) -> Vec<QueueSample> {
    let mut samples = Vec::new();
    for round in 1..=4u32 {
        for (at, left) in waiting.iter().enumerate() {
            let produced = items * u64::from(round - 1)
                + (items * (at as u64 + 1) / waiting.len() as u64).max(*left);
            samples.push(QueueSample {
                at_seconds: f64::from(round) + at as f64 / 100.0,
                round,
                produced,
                consumed: produced - left,
                live_bytes: 4_000_000 + left * bytes_each,
            });
        }
    }
    samples
}

#[test]
fn items_that_nobody_holds_back_are_a_backlog() {
    let mut books = Program::new(1, 6).books();
    books.queue = queue(&[0, 3, 7, 12, 17, 22, 26, 28, 14, 0], 32, 8 << 20);
    let undeclared = verdict(&books);
    assert_eq!(undeclared.class, Class::Backlog);
    assert!(
        undeclared.sentence.contains("28 items waited at once"),
        "{}",
        undeclared.sentence
    );
    assert!(
        undeclared.sentence.contains("8.0 MiB"),
        "{}",
        undeclared.sentence
    );

    books.queue_design = Some(QueueDesign {
        capacity: 4,
        producers: 4,
    });
    assert_eq!(verdict(&books).class, Class::Backlog);
}

#[test]
fn a_bounded_queue_that_works_as_designed_is_no_backlog() {
    let mut books = Program::new(1, 6).books();
    books.queue = queue(&[0, 2, 5, 7, 8, 8, 9, 8, 4, 0], 32, 8 << 20);
    assert_eq!(verdict(&books).class, Class::Clean);
    books.queue_design = Some(QueueDesign {
        capacity: 4,
        producers: 4,
    });
    assert_eq!(verdict(&books).class, Class::Clean);
    // A small round may wait whole in a queue that was made for it.
    books.queue = queue(&[0, 2, 4, 4, 3, 1, 0, 0, 0, 0], 4, 8 << 20);
    assert_eq!(verdict(&books).class, Class::Clean);
}

#[test]
fn a_run_over_its_limit_is_a_ceiling_a_leak_or_a_backlog_by_its_books() {
    let limit = Ending::Limit {
        limit_bytes: 1 << 30,
        peak_bytes: 5 << 28,
        enforced_by: LimitKind::Watchdog,
    };
    let mut books = Program::new(1, 6).books();
    books.ending = limit.clone();
    let ceiling = verdict(&books);
    assert_eq!(ceiling.class, Class::Ceiling);
    assert!(
        ceiling.sentence.contains("1.2 GiB with a limit of 1.0 GiB"),
        "{}",
        ceiling.sentence
    );

    books.queue = queue(&[0, 3, 7, 12, 17, 22, 26, 28], 32, 8 << 20);
    assert_eq!(verdict(&books).class, Class::Backlog);

    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "synthesis", |_| (64 << 20, 1));
    let mut books = program.books();
    books.ending = limit.clone();
    assert_eq!(verdict(&books).class, Class::Leak);

    let mut books = Program::new(1, 0).books();
    books.ending = limit;
    assert_eq!(verdict(&books).class, Class::Ceiling);
}

#[test]
fn a_peak_above_the_limit_is_a_ceiling_also_if_nobody_killed_it() {
    let mut books = Program::new(1, 6).books();
    books.limit_bytes = Some(3 << 20);
    assert_eq!(verdict(&books).class, Class::Ceiling);
    books.limit_bytes = Some(4 << 20);
    assert_eq!(verdict(&books).class, Class::Clean);
}

#[test]
fn memory_that_is_asked_for_and_not_touched_passes_no_limit() {
    let mut books = Program::new(1, 6).books();
    books.limit_bytes = Some(64 << 20);
    for round in &mut books.rounds {
        round.peak_bytes = 1 << 30;
    }
    assert_eq!(verdict(&books).class, Class::Clean);
    for round in &mut books.rounds {
        let gauges = round.gauges.as_mut().expect("gauges");
        (gauges.rss_peak, gauges.rss_file) = (70 << 20, 10 << 20);
    }
    assert_eq!(verdict(&books).class, Class::Clean, "file pages are none");
}

#[test]
fn an_end_by_something_else_is_a_crash_or_a_hang() {
    let mut books = Program::new(1, 3).books();
    books.ending = Ending::Signal { signal: 9 };
    let crash = verdict(&books);
    assert_eq!(crash.class, Class::Crash);
    assert!(
        crash.sentence.contains("3 rounds had ended"),
        "{}",
        crash.sentence
    );
    books.ending = Ending::Hang {
        idle_seconds: 30.0,
        busy: false,
    };
    assert_eq!(verdict(&books).class, Class::Hang);
}

#[test]
fn rounds_most_of_whose_ends_were_heard_of_too_late_are_inconclusive() {
    let judged = |late: usize| {
        let mut books = Program::new(1, 9).books();
        for round in books.rounds.iter_mut().skip(1).take(late) {
            round.late = true;
        }
        verdict(&books)
    };
    let most = judged(5);
    assert_eq!(most.class, Class::Inconclusive, "{}", most.sentence);
    assert!(most.sentence.contains("tidegate.h"), "{}", most.sentence);
    assert!(judged(4).class.passes(), "half of 8 rounds are not most");
}

#[test]
fn what_a_verdict_lacks_makes_it_inconclusive() {
    let good = Program::new(1, 8).books();
    let lacks = |change: fn(&mut Books)| {
        let mut books = good.clone();
        change(&mut books);
        let verdict = verdict(&books);
        assert_eq!(verdict.class, Class::Inconclusive, "{}", verdict.sentence);
        assert_eq!(verdict.missing.len(), 1, "{:?}", verdict.missing);
        verdict.sentence
    };
    assert!(lacks(|b| b.health.attached = false).contains("never reported"));
    assert!(lacks(|b| b.health.lost = 3).contains("3 operations could not be booked"));
    assert!(lacks(|b| b.health.unreadable.push("smaps".into())).contains("smaps"));
    assert!(lacks(|b| b.rounds.truncate(3)).contains("2 rounds could be judged, 2 rounds more"));
    assert!(
        lacks(|b| b.rounds.iter_mut().for_each(|r| r.settle.settled = false)).contains("settle")
    );
    assert!(lacks(|b| b.rounds.iter_mut().for_each(|r| r.gauges = None)).contains("0 of 8"));
    assert_eq!(verdict(&Books::default()).class, Class::Inconclusive);
}

#[test]
fn a_block_that_crossed_allocators_is_noted_by_name_and_decides_nothing() {
    let mut books = healthy_prover(8).books();
    let before = verdict(&books);
    books.health.crossed_releases = 3;
    let after = verdict(&books);
    assert_eq!(after.class, before.class);
    assert_eq!(after.findings, before.findings);
    let new: Vec<&Note> = after
        .notes
        .iter()
        .filter(|note| !before.notes.contains(note))
        .collect();
    assert_eq!(new.len(), 1, "{new:#?}");
    assert_eq!(new[0].amount, Amount::new(0, 3));
    assert!(
        new[0].sentence.starts_with("crossed allocators: 3 blocks"),
        "{}",
        new[0].sentence
    );
}

#[test]
fn a_leak_in_exact_books_is_said_though_gauges_are_unreadable() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "synthesis", |_| (96, 1));
    let mut books = program.books();
    books.rounds.iter_mut().for_each(|round| {
        round.gauges = None;
        round.settle.settled = false;
    });
    books.health.unreadable.push("RssAnon".to_owned());
    assert_eq!(verdict(&books).class, Class::Leak);
    books.health.lost = 1;
    assert_eq!(
        verdict(&books).class,
        Class::Inconclusive,
        "a lost free looks like a leak"
    );
}

fn resident(of: impl Fn(u64) -> u64, rounds: u64) -> Books {
    let mut program = Program::new(1, rounds as u32);
    program.gauges = (1..=rounds)
        .map(|round| Gauges {
            rss_anon: of(round),
            threads: 3,
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    program.books()
}

#[test]
fn resident_memory_above_live_is_explained_by_a_trim() {
    let mut books = resident(|_| 900 << 20, 8);
    books
        .rounds
        .iter_mut()
        .for_each(|round| round.peak_bytes = 850 << 20);
    let untried = verdict(&books);
    assert_eq!(untried.class, Class::Clean);
    assert!(untried.notes[0].sentence.contains("a trim would tell why"));
    assert_eq!(
        next_step(&books, &Settings::default()),
        Step::Probe(ProbeKind::Trim)
    );

    books.probes = vec![trim(&books, 30 << 20)];
    assert_eq!(verdict(&books).class, Class::Retention);
    assert_eq!(next_step(&books, &Settings::default()), Step::Stop);
    books.probes = vec![trim(&books, 800 << 20)];
    assert_eq!(verdict(&books).class, Class::Fragmentation);
}

#[test]
fn mappings_that_are_booked_and_held_are_nothing_that_an_allocator_keeps() {
    let mut books = resident(|_| 60 << 20, 8);
    books.series.push(crate::books::Series {
        layer: Layer::Anon,
        phase: "unattributed".to_owned(),
        live: vec![Amount::new(48 << 20, 1); 8],
    });
    books.probes = vec![trim(&books, 59 << 20)];
    assert_eq!(verdict(&books).class, Class::Clean);
}

#[test]
fn a_block_that_is_touched_little_by_little_is_no_growth() {
    let mut program = Program::new(1, 26);
    program.block(RustHeap, "unattributed", 1, FOR_EVER, 96 << 20, 1);
    program.gauges = (0..26)
        .map(|n| Gauges {
            rss_anon: (8 << 20) + n * (2 << 20),
            threads: 3,
            fds: 5,
            ..Gauges::default()
        })
        .collect();
    let mut books = program.books();
    books
        .rounds
        .iter_mut()
        .for_each(|round| round.peak_bytes = 96 << 20);
    assert_eq!(verdict(&books).class, Class::Clean);
}

#[test]
fn the_resident_memory_of_the_healthy_prover_never_fails() {
    let known = [
        (1, 146),
        (2, 161),
        (3, 170),
        (4, 173),
        (8, 187),
        (18, 206),
        (28, 214),
        (38, 217),
    ];
    let rss = |round: u64| {
        let mib = known
            .windows(2)
            .find(|pair| round <= pair[1].0)
            .map_or(217 << 20, |pair| {
                let (x, y) = pair[0];
                let share = (round.max(x) - x) as f64 / (pair[1].0 - x) as f64;
                ((y as f64 + share * (pair[1].1 - y) as f64) * f64::from(1 << 20)) as u64
            });
        mib - (86 << 20)
    };
    for rounds in 5..=120 {
        let mut books = resident(rss, rounds);
        let last = rss(rounds);
        for after in [last, last / 2, last / 10] {
            books.probes = vec![trim(&books, after)];
            let verdict = verdict(&books);
            assert!(verdict.class.passes(), "{rounds}: {}", verdict.sentence);
        }
    }
}

#[test]
fn mappings_that_no_ledger_books_are_unexplained_growth_with_two_witnesses() {
    let mut books = resident(|round| (8 << 20) + round * (4 << 20), 12);
    let alone = verdict(&books);
    assert_eq!(alone.class, Class::Inconclusive);
    assert!(
        alone.sentence.contains("no second witness"),
        "{}",
        alone.sentence
    );

    books.probes = vec![trim(&books, 56 << 20)];
    let trimmed = verdict(&books);
    assert_eq!(
        trimmed.class,
        Class::UnexplainedGrowth,
        "{}",
        trimmed.sentence
    );
    assert_eq!(trimmed.findings[0].confirmed, [Confirmation::OutlastsTrim]);

    books.probes.clear();
    books.maps.push(MapSeries {
        name: "[anon:arena of the driver]".to_owned(),
        kind: MapKind::Anon,
        resident: (1..=12).map(|n| n * (4 << 20)).collect(),
    });
    let named = verdict(&books);
    assert_eq!(named.class, Class::UnexplainedGrowth);
    assert!(named.sentence.contains("[anon:arena of the driver]"));
    assert_eq!(
        named.findings[0].site.as_deref(),
        Some("[anon:arena of the driver]")
    );
    assert_eq!(trimmed.findings[0].site, None);

    books.maps[0].kind = MapKind::Allocator;
    assert!(verdict(&books).class.passes(), "the allocator has it");
    assert_eq!(
        next_step(&books, &Settings::default()),
        Step::Probe(ProbeKind::Trim)
    );
    books.probes = vec![trim(&books, 56 << 20)];
    assert_eq!(verdict(&books).class, Class::UnexplainedGrowth);
    books.probes = vec![trim(&books, 12 << 20)];
    assert!(verdict(&books).class.passes(), "and gives it back");
}

#[test]
fn a_trim_that_returns_less_than_half_of_the_growth_is_a_witness() {
    let mut books = resident(|round| (8 << 20) + round * (1 << 20), 12);
    books.probes = vec![trim(&books, 16 << 20)];
    assert_eq!(verdict(&books).class, Class::UnexplainedGrowth);
    books.probes = vec![trim(&books, 14 << 20)];
    assert!(verdict(&books).class.passes(), "the trim explains it");
}

#[test]
fn long_growth_of_another_allocators_mappings_is_not_explained_by_what_was_live_once() {
    let rss = |round: u64| (60 << 20) + round * (4 << 20) + (round * 7 % 5) * (3 << 20);
    let books = |rounds: u64| {
        let mut books = resident(rss, rounds);
        books
            .rounds
            .iter_mut()
            .for_each(|round| round.peak_bytes = 1 << 30);
        books.maps.push(MapSeries {
            name: "anonymous mappings".to_owned(),
            kind: MapKind::Anon,
            resident: (1..=rounds).map(rss).collect(),
        });
        books
    };
    let verdict = verdict(&books(60));
    assert_eq!(
        verdict.class,
        Class::UnexplainedGrowth,
        "{}",
        verdict.sentence
    );
    let mut malloc = books(60);
    malloc.maps[0].kind = MapKind::Allocator;
    assert!(super::judge(&malloc, &Settings::default()).class.passes());
}

#[test]
fn a_gauge_that_grows_is_watched_for_as_long_as_a_leak() {
    let growing = |rounds| resident(|round| (8 << 20) + round * (2 << 20), rounds);
    assert!(matches!(
        next_step(&growing(10), &Settings::default()),
        Step::MoreRounds { .. }
    ));
    assert_eq!(
        next_step(&growing(26), &Settings::default()),
        Step::Probe(ProbeKind::Trim)
    );
}

#[test]
fn file_pages_never_fail() {
    let mut books = Program::new(1, 12).books();
    for (at, round) in books.rounds.iter_mut().enumerate() {
        if let Some(gauges) = &mut round.gauges {
            gauges.rss_file = at as u64 * (100 << 20);
        }
    }
    let verdict = verdict(&books);
    assert_eq!(verdict.class, Class::Clean);
    assert!(
        verdict.notes[0]
            .sentence
            .contains("the kernel can take them back")
    );
}

#[test]
fn an_adaptive_run_stops_early_where_nothing_grows() {
    assert_eq!(
        next_step(&healthy_prover(10).books(), &Settings::default()),
        Step::Stop
    );
    assert!(matches!(
        next_step(&healthy_prover(4).books(), &Settings::default()),
        Step::MoreRounds { .. }
    ));
}

#[test]
fn an_adaptive_run_lets_a_leak_prove_itself() {
    let leak = |rounds| {
        let mut program = Program::new(1, rounds);
        program.keeps(RustHeap, "synthesis", |_| (96, 1));
        program.books()
    };
    let settings = Settings::default();
    assert!(matches!(
        next_step(&leak(8), &settings),
        Step::MoreRounds { rounds: 7, .. }
    ));
    let mut proven = leak(25);
    assert_eq!(next_step(&proven, &settings), Step::Probe(ProbeKind::Idle));
    let live = proven.series[0].live[24];
    proven.probes.push(Probe {
        kind: ProbeKind::Idle,
        seconds: 1.0,
        live_before: live,
        live_after: live,
        before: None,
        after: None,
    });
    assert_eq!(next_step(&proven, &settings), Step::Stop);
    let fixed = Settings {
        max_rounds: 8,
        probes: Vec::new(),
        ..settings
    };
    assert_eq!(next_step(&leak(8), &fixed), Step::Stop);
}

#[test]
fn idling_that_shows_growth_to_be_unclear_asks_for_more_rounds() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "synthesis", |round| {
        let blocks = i64::from(round.wrapping_mul(2_654_435_761) >> 29) + 1;
        (96 * blocks, blocks)
    });
    let mut books = program.books();
    let unclear = |step: &Step| matches!(step, Step::MoreRounds { because, .. } if because.contains("still grows"));
    let live = books.series[0].live[7];
    for (kind, asks) in [(ProbeKind::Idle, true), (ProbeKind::Trim, false)] {
        books.probes = vec![Probe {
            kind,
            seconds: 1.0,
            live_before: live,
            live_after: live,
            before: None,
            after: None,
        }];
        let step = next_step(&books, &Settings::default());
        assert_eq!(unclear(&step), asks, "{step:?}");
    }
}

#[test]
fn books_that_never_settle_show_a_leak_that_idling_does_not_return() {
    let mut program = Program::new(1, 30);
    program.keeps(RustHeap, "unattributed", |round| {
        let blocks = 30 + i64::from(round.wrapping_mul(2_654_435_761) >> 28);
        (100 * blocks, blocks)
    });
    let mut books = program.books();
    for round in &mut books.rounds {
        round.settle.settled = false;
    }
    assert_eq!(verdict(&books).class, Class::Inconclusive);
    let live = books.series[0].live[29];
    books.probes.push(Probe {
        kind: ProbeKind::Idle,
        seconds: 2.0,
        live_before: live,
        live_after: live + Amount::new(4_000, 40),
        before: None,
        after: None,
    });
    assert_eq!(verdict(&books).class, Class::Leak);
}

#[test]
fn a_verdict_survives_storing() {
    let mut program = healthy_prover(12);
    program.keeps(RustHeap, "finish", |round| {
        if round % 2 == 0 { (96, 1) } else { (0, 0) }
    });
    let verdict = verdict(&program.books());
    assert_eq!(verdict.findings[0].driver, Driver::EveryKthRound(2));
    let stored = serde_json::to_string(&verdict).expect("plain data");
    let read: Verdict = serde_json::from_str(&stored).expect("the same data");
    assert_eq!(read, verdict);
    assert!(Health::default().unreadable.is_empty());
}

#[test]
fn what_the_driver_keeps_for_itself_is_told_and_not_judged() {
    let mut program = Program::new(2, 12);
    program.keeps(Layer::DriverHeap, "msm_g1", |_| (880, 3));
    let found = verdict(&program.books());
    assert_eq!(found.class, Class::Clean, "{}", found.sentence);
    let note = |note: &&Note| note.layer == Some(Layer::DriverHeap);
    let note = found.notes.iter().find(note).expect("the residue is told");
    assert_eq!(note.amount, Amount::new(10 * 880, 10 * 3));
    // The same of the application's own heap is a leak.
    let mut program = Program::new(2, 12);
    program.keeps(NativeHeap, "msm_g1", |_| (880, 3));
    assert_eq!(verdict(&program.books()).class, Class::Leak);
}

#[test]
fn objects_of_the_gpu_that_grow_are_a_handle_leak() {
    for layer in [Layer::GpuStreams, Layer::GpuContexts, Layer::GpuImports] {
        let mut program = Program::new(2, 8);
        program.keeps(layer, "msm_g1", |_| (0, 2));
        let found = verdict(&program.books());
        assert_eq!(found.class, Class::HandleLeak, "{}", found.sentence);
        assert_eq!(found.findings[0].layer, layer);
        assert_eq!(found.findings[0].per_driver, Some(Amount::new(0, 2)));
    }
}

#[test]
fn other_processes_on_the_card_are_told_and_change_no_verdict() {
    let of = |others: [u64; 6]| {
        let mut program = Program::new(2, 6);
        program.gauges = others
            .map(|others| Gauges {
                rss_anon: 2 << 20,
                threads: 3,
                fds: 5,
                card: Some(Card {
                    process: 526 << 20,
                    used: (615 + 526 * (1 + others)) << 20,
                    others,
                }),
                ..Gauges::default()
            })
            .to_vec();
        let verdict = verdict(&program.books());
        assert_eq!(verdict.class, Class::Clean, "{}", verdict.sentence);
        let notes = verdict.notes.into_iter().map(|note| note.sentence);
        notes.collect::<Vec<_>>()
    };
    assert_eq!(of([0; 6]), Vec::<String>::new());
    let alone = "what the card has in use is not the workload's alone";
    assert_eq!(
        of([0, 0, 0, 1, 0, 0]),
        [format!(
            "the card is shared: 1 other process computed on it after round 4; {alone}"
        )]
    );
    assert_eq!(
        of([0, 1, 3, 1, 0, 1]),
        [format!(
            "the card is shared: up to 3 other processes computed on it after rounds 2 to 4 and \
             6; {alone}"
        )]
    );
}

#[test]
fn memory_of_the_card_does_not_make_up_for_pinned_memory() {
    let mut program = Program::new(2, 12);
    program.keeps(Layer::Pinned, "msm_g1", |_| (4096, 1));
    program.rolls(Layer::Device, "msm_g1", |round| {
        let left = 100 - i64::from(round);
        (4096 * left, left)
    });
    assert_eq!(verdict(&program.books()).class, Class::Leak);
}

#[test]
fn a_refused_release_is_no_cause_of_a_leak_in_another_layer() {
    let mut program = Program::new(1, 8);
    program.keeps(RustHeap, "msm_g1", |_| (1 << 20, 1));
    let mut books = program.books();
    books.refusals = vec![Refusal {
        round: 3,
        layer: Layer::Pinned,
        phase: "msm_g1".to_owned(),
        call: "cudaFreeHost".to_owned(),
        status: "800 (not permitted)".to_owned(),
        count: 1,
    }];
    let verdict = verdict(&books);
    assert_eq!(verdict.findings.len(), 1);
    assert_eq!(verdict.findings[0].cause, None);
    assert!(
        verdict.notes[0]
            .sentence
            .contains("cudaFreeHost was refused 1 time")
    );
}

#[test]
fn a_verdict_says_how_much_was_judged_and_could_have_been_seen() {
    let mut program = Program::new(1, 9);
    program.block(RustHeap, "synthesis", 1, FOR_EVER, 4096, 3);
    program.block(NativeHeap, "msm", 1, FOR_EVER, 4096, 3);
    let mut books = program.books();
    let whole = verdict(&books);
    let gauges = 7;
    assert_eq!(whole.judged.series_exist, 2 + gauges);
    assert_eq!(whole.judged.series_judged, 2 + gauges);
    assert_eq!(
        (whole.judged.rounds_judged, whole.judged.rounds_ended),
        (8, 9)
    );
    let power = whole.power.expect("a whole run");
    assert_eq!((power.blocks_per_round, power.bytes_per_round), (1, 16));
    assert_eq!(power.gauge_bytes_per_round, Some((4 << 20) / 8));
    books.series[0].live.pop();
    let broken = verdict(&books);
    assert_eq!(broken.judged.series_judged, 1 + gauges);
    assert_eq!(broken.power, None);
    let short = verdict(&Program::new(1, 8).books());
    assert_eq!(
        short.power.expect("a whole run").gauge_bytes_per_round,
        None
    );
}

#[test]
fn what_was_tried_says_what_it_showed() {
    let mut books = Program::new(1, 8).books();
    let before = books.rounds[7].gauges;
    let probe = |kind, live_after, after| Probe {
        kind,
        seconds: 0.0,
        live_before: Amount::new(1000, 1),
        live_after: Amount::new(live_after, 1),
        before,
        after,
    };
    let less = before.map(|gauges| Gauges {
        rss_anon: gauges.rss_anon - (1 << 20),
        ..gauges
    });
    books.probes = vec![
        probe(ProbeKind::Idle, 1000, before),
        probe(ProbeKind::Trim, 1000, less),
        probe(ProbeKind::Replay, 1096, None),
        probe(ProbeKind::Drain, 904, None),
    ];
    let tried = verdict(&books).tried;
    let showed: Vec<&str> = tried[2..]
        .iter()
        .map(|tried| tried.showed.as_str())
        .collect();
    assert_eq!(
        showed,
        [
            "live memory did not move, resident memory fell by 0 bytes",
            "live memory did not move, resident memory fell by 1.0 MiB",
            "live memory rose by 96 bytes, resident memory could not be read",
            "live memory fell by 96 bytes, resident memory could not be read",
        ]
    );
}

#[test]
fn records_of_threads_that_are_gone_are_no_growth_that_is_left_open() {
    // As measured: detached threads that outlast seven rounds. Nine were alive at once,
    // and two are left.
    let books = |bytes: i64, left: u64| {
        let mut program = Program::new(2, 10);
        program.block(NativeHeap, "unattributed", 1, FOR_EVER, 560, 7);
        for round in 1..=9 {
            program.block(NativeHeap, "unattributed", round, round + 7, 80, 2);
        }
        for round in 1..=8 {
            program.block(NativeHeap, "unattributed", round, FOR_EVER, bytes, 1);
        }
        let gauges = |threads| Gauges {
            rss_anon: 2 << 20,
            rss_peak: 4 << 20,
            threads,
            fds: 5,
            ..Gauges::default()
        };
        program.gauges = [3, 4, 5, 6, 7, 8, 9, 9, 9, 8].map(gauges).to_vec();
        let mut books = program.books();
        // The threads end after the last round, and free what was theirs.
        for of_round in books.survivors.iter_mut().filter(|of| of.round >= 4) {
            of_round.left = of_round.left - Amount::new(80, 2);
        }
        books.survivors.retain(|of_round| of_round.left.blocks > 0);
        books.probes = vec![Probe {
            kind: ProbeKind::Idle,
            seconds: 1.0,
            live_before: Amount::ZERO,
            live_after: Amount::ZERO,
            before: Some(gauges(8)),
            after: Some(gauges(left)),
        }];
        books
    };
    let gone = verdict(&books(288, 2));
    assert!(gone.class.passes(), "{}", gone.sentence);
    let kept = |note: &Note| note.sentence.contains("stacks of threads that are gone");
    assert!(gone.notes.iter().any(kept), "{:?}", gone.notes);
    // Smaller or larger blocks, or threads that are still there.
    for (bytes, left) in [(24, 2), (240, 2), (1040, 2), (288, 5)] {
        let class = verdict(&books(bytes, left)).class;
        assert!(!class.passes(), "{bytes} bytes, {left} threads: {class}");
    }
}

/// Books of a program whose detached threads end after several rounds, as measured: what
/// is alive of malloc's after each round and the threads then, and a record of 288 bytes
/// left of each round from the second to this one.
fn detached(warmup: u32, alive: &[(i64, i64)], threads: &[u64], last: u32) -> Books {
    let rounds = threads.len() as u32;
    let mut program = Program::new(warmup, rounds);
    program.threads_created = (1..=u64::from(rounds)).map(|round| round + 2).collect();
    let gauges = |threads| Gauges {
        rss_anon: 60 << 20,
        rss_peak: 80 << 20,
        threads,
        fds: 7,
        ..Gauges::default()
    };
    program.gauges = threads.iter().map(|threads| gauges(*threads)).collect();
    let mut books = program.books();
    let series = |layer, live| Series {
        layer,
        phase: "unattributed".to_owned(),
        live,
    };
    let native = alive.iter().map(|alive| Amount::new(alive.0, alive.1));
    // What they hold comes back.
    let held = threads.iter().map(|threads| *threads as i64 - 2);
    let held = held.map(|threads| Amount::new(threads << 23, threads));
    books.series = vec![
        series(NativeHeap, native.collect()),
        series(RustHeap, held.collect()),
    ];
    let left = |round, bytes, blocks| Survivors {
        round,
        layer: NativeHeap,
        phase: "unattributed".to_owned(),
        left: Amount::new(bytes, blocks),
    };
    books.survivors = vec![left(1, 368, 3)];
    books
        .survivors
        .extend((2..=last).map(|round| left(round, 288, 1)));
    let ends = books.series.iter().filter_map(|series| series.live.last());
    let end = *threads.last().expect("a round");
    books.probes = vec![Probe {
        kind: ProbeKind::Idle,
        seconds: 1.8,
        live_before: ends.copied().sum(),
        live_after: books.survivors.iter().map(|left| left.left).sum(),
        before: Some(gauges(end)),
        after: Some(gauges(2)),
    }];
    books
}

#[test]
fn detached_threads_that_become_more_in_most_rounds_are_dwell() {
    const ALIVE: [(i64, i64); 10] = [
        (848, 9),
        (1216, 12),
        (1584, 15),
        (1952, 18),
        (2320, 21),
        (2688, 24),
        (3056, 27),
        (3424, 30),
        (3712, 31),
        (3632, 29),
    ];
    let until = |rounds: usize, last: &[(i64, i64)]| [&ALIVE[..rounds], last].concat();
    type Detached = (u32, Vec<(i64, i64)>, &'static [u64], u32);
    let runs: [Detached; 7] = [
        (0, until(6, &[(2976, 25); 2]), &[3, 4, 5, 6, 7, 8, 8, 8], 7),
        (0, until(7, &[(3056, 27)]), &[3, 4, 5, 6, 7, 8, 9, 9], 7),
        (0, until(7, &[(3344, 28)]), &[3, 4, 5, 6, 7, 8, 9, 9], 8),
        (0, until(7, &[(2976, 25)]), &[3, 4, 5, 6, 7, 8, 9, 8], 7),
        (1, until(9, &[]), &[3, 4, 5, 6, 7, 8, 9, 10, 10], 9),
        (
            1,
            until(7, &[(3344, 28); 2]),
            &[3, 4, 5, 6, 7, 8, 9, 9, 9],
            9,
        ),
        (2, until(10, &[]), &[3, 4, 5, 6, 7, 8, 9, 10, 10, 9], 9),
    ];
    for (warmup, alive, threads, last) in runs {
        let found = verdict(&detached(warmup, &alive, threads, last));
        assert_eq!(found.class, Class::Dwell, "{threads:?}: {}", found.sentence);
        let gone = |note: &Note| note.sentence.ends_with("were gone after idling");
        assert!(found.notes.iter().any(gone), "{:?}", found.notes);
    }
}

#[test]
fn a_lost_block_is_a_leak_also_where_threads_come_and_go() {
    let lost = |threads: &[u64], bytes: i64, blocks: i64| {
        let rounds = threads.len();
        let alive: Vec<_> = (0..rounds as i64)
            .map(|round| (848 + bytes * round, 9 + blocks * round))
            .collect();
        let mut books = detached(0, &alive, threads, rounds as u32);
        for of_round in books.survivors.iter_mut().filter(|of| of.round > 1) {
            of_round.left = Amount::new(bytes, blocks);
        }
        let found = verdict(&books);
        assert_eq!(found.class, Class::Leak, "{bytes}: {}", found.sentence);
    };
    // As large as a record, where the threads become no more.
    lost(&[9; 8], 288, 1);
    // Beside the records: another block, or as large a one.
    let rising = [3, 4, 5, 6, 7, 8, 9, 9];
    lost(&rising, 288 + 24, 2);
    lost(&rising, 288 + 300, 2);
    lost(&rising, 2 * 288, 2);
    // And instead of them.
    lost(&rising, 24, 1);
}

#[test]
fn a_block_lost_per_round_is_a_leak_where_a_batch_is_there_or_not_at_its_end() {
    // As measured: a thread makes ten blocks ahead, before a round's end or after it, and
    // one of them is lost in each round.
    type Run = (&'static [i64], &'static [u32]);
    let runs: [Run; 4] = [
        (
            &[
                50, 51, 41, 42, 54, 44, 56, 57, 47, 48, 60, 61, 51, 63, 64, 54, 66, 67, 57, 69, 59,
                60, 72, 73, 63,
            ],
            &[
                2, 3, 5, 6, 6, 8, 8, 9, 11, 12, 12, 13, 15, 15, 16, 18, 18, 19, 21, 21, 23, 24, 24,
                25,
            ],
        ),
        (
            &[
                33, 45, 35, 36, 37, 38, 50, 40, 41, 53, 43, 44, 56, 46, 58, 48, 49, 50, 51, 52, 64,
                54, 55, 56, 57,
            ],
            &[
                3, 3, 5, 6, 7, 8, 8, 10, 11, 11, 13, 14, 14, 16, 16, 18, 19, 20, 21, 22, 22, 24,
                25, 26,
            ],
        ),
        (
            &[
                40, 41, 42, 43, 44, 34, 35, 36, 37, 49, 39, 40, 41, 42, 43, 44, 56, 57, 47, 59, 60,
                61, 62, 63, 64,
            ],
            &[
                2, 3, 4, 5, 6, 8, 9, 10, 11, 11, 13, 14, 15, 16, 17, 18, 18, 19, 21, 21, 22, 23,
                24, 25,
            ],
        ),
        (
            &[
                40, 41, 42, 43, 44, 45, 46, 47, 37, 49, 50, 51, 43, 53, 54, 55, 47, 57, 58, 59, 60,
                61, 62, 63, 64,
            ],
            &[
                2, 3, 4, 5, 6, 7, 8, 9, 11, 11, 12, 13, 15, 15, 16, 17, 19, 19, 20, 21, 22, 23, 24,
                25,
            ],
        ),
    ];
    for (alive, lost_in) in runs {
        let mut books = Program::new(2, 26).books();
        books.series = vec![Series {
            layer: NativeHeap,
            phase: "unattributed".to_owned(),
            live: [&[alive[0]], alive]
                .concat()
                .iter()
                .map(|blocks| Amount::new(60_000 + 700 * blocks, *blocks))
                .collect(),
        }];
        books.survivors = lost_in
            .iter()
            .map(|round| Survivors {
                round: *round,
                layer: NativeHeap,
                phase: "unattributed".to_owned(),
                left: Amount::new(700, 1),
            })
            .collect();
        let found = verdict(&books);
        assert_eq!(found.class, Class::Leak, "{alive:?}: {}", found.sentence);
        // A window of the last twelve rounds holds as many, and is full.
        books.survivors.retain(|left| left.round > 14);
        let found = verdict(&books);
        assert_ne!(found.class, Class::Leak, "{alive:?}: {}", found.sentence);
    }
}

#[test]
fn a_loss_that_is_hidden_by_what_comes_and_goes_is_never_called_clean() {
    // Live memory swings by more than all that is lost, which varies; survivors show it.
    let swings = [
        310, 20, 450, 490, 380, 70, 470, 240, 5, 410, 160, 330, 90, 440, 210, 30, 360, 280, 110,
        130, 50, 190, 400, 15,
    ];
    let lost_in = |round: i64| 1 + i64::from(round * round * 13 % 29 > 14);
    let judged = |left_since: u32, lost: i64| {
        let mut books = Program::new(2, 26).books();
        let mut blocks = 500;
        let live = |(round, swing): (usize, &i64)| {
            blocks += lost * lost_in(round as i64);
            Amount::new((blocks + swing) * 1000, blocks + swing)
        };
        books.series = vec![Series {
            layer: NativeHeap,
            phase: "unattributed".to_owned(),
            live: [0, 0].iter().chain(&swings).enumerate().map(live).collect(),
        }];
        books.survivors = (left_since..=26)
            .map(|round| {
                let blocks = lost_in(i64::from(round));
                Survivors {
                    round,
                    layer: NativeHeap,
                    phase: "unattributed".to_owned(),
                    left: Amount::new(1000 * blocks, blocks),
                }
            })
            .collect();
        verdict(&books)
    };
    let hidden = judged(1, 1);
    assert_eq!(hidden.class, Class::Inconclusive, "{}", hidden.sentence);
    // What is kept of the last rounds alone is not lost.
    let kept = judged(20, 0);
    assert!(kept.class.passes(), "{}", kept.sentence);
}

#[test]
fn one_block_that_grows_is_a_leak_beside_another_that_comes_and_goes() {
    // A shell's string, and half a kilobyte that is or is not there at a round's end.
    let books = |is_there: fn(u32) -> bool| {
        let mut program = Program::new(3, 30);
        program.rolls(NativeHeap, "unattributed", move |round| {
            let extra = i64::from(is_there(round));
            (10_000 * i64::from(round) + 512 * extra, 55 + extra)
        });
        program.books()
    };
    for is_there in [
        (|round| matches!(round, 1 | 4 | 5 | 8 | 18 | 22 | 24 | 26) || round >= 28)
            as fn(u32) -> bool,
        |round| matches!(round, 2 | 7 | 11 | 30),
        |round| round % 2 == 0,
    ] {
        let found = verdict(&books(is_there));
        assert_eq!(found.class, Class::Leak, "{}", found.sentence);
    }
}
