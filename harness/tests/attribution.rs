//! Where a block belongs (round, item, phase) goes with the work, whichever thread
//! does it: plain threads, rayon's pool, tokio's blocking pool and its workers.
//!
//! Each test books blocks of sizes that tell the items apart, and asks the books of
//! the run for each item of each round.

use std::future::poll_fn;
use std::hint::black_box;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;
use std::thread;

use tidegate::books::{Amount, Layer};
use tidegate::{Place, Run, Scenario};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

const ITEMS: u32 = 4;
const WARMUP: u32 = 1;
const ROUNDS: u32 = 3;

fn scenario(name: &str) -> Scenario {
    Scenario::new(name).warmup(WARMUP).rounds(ROUNDS)
}

/// Bytes that tell one item's block from another's.
fn bytes_of(item: u32) -> usize {
    5000 + item as usize
}

fn block_of(item: u32) -> Vec<u8> {
    black_box(vec![1_u8; bytes_of(item)])
}

/// The place of an item in phase `msm`, taken by a thread that is there no more.
fn place_of(item: u32) -> Place {
    let _phase = tidegate::phase("msm");
    let _item = tidegate::item(item);
    Place::current()
}

/// Asserts that each round booked one block for each item in phase `msm`, and its release.
fn assert_one_block_an_item(run: &Run) {
    run.assert_passes();
    for round in 1..=run.books().rounds.len() as u32 {
        for item in 0..ITEMS {
            let books: Vec<_> = run
                .books()
                .items
                .iter()
                .filter(|book| book.round == round && book.item == item)
                .collect();
            assert_eq!(books.len(), 1, "round {round}, item {item}: {books:#?}");
            let one = Amount::new(bytes_of(item) as i64, 1);
            let (book, found) = (books[0], (books[0].allocated, books[0].released));
            assert_eq!(
                (book.layer, book.phase.as_str(), found),
                (Layer::RustHeap, "msm", (one, one)),
                "round {round}, item {item}"
            );
        }
    }
}

#[test]
fn a_plain_thread_books_where_its_work_was_handed_over() {
    let run = scenario("plain threads").run(|_| {
        let threads = (0..ITEMS).map(|item| {
            let work = place_of(item).carry(move || drop(block_of(item)));
            thread::spawn(work)
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().unwrap();
        }
    });
    assert_one_block_an_item(&run);
}

#[test]
fn a_block_that_another_thread_frees_is_released_where_it_was_born() {
    let run = scenario("freed elsewhere").run(|_| {
        for item in 0..ITEMS {
            let work = place_of(item).carry(move || block_of(item));
            let block = thread::spawn(work).join().unwrap();
            // On a third thread, which is somewhere else.
            let elsewhere = place_of((item + 1) % ITEMS);
            let freed = thread::spawn(elsewhere.carry(move || drop(block)));
            freed.join().unwrap();
        }
    });
    assert_one_block_an_item(&run);
}

#[test]
fn a_thread_that_lives_on_books_each_block_in_the_round_that_bore_it() {
    let mut worker: Option<Sender<(Place, u32, Sender<()>)>> = None;
    let run = scenario("a thread for all rounds").run(|_| {
        let worker = worker.get_or_insert_with(|| {
            let (orders, work) = channel::<(Place, u32, Sender<()>)>();
            thread::spawn(move || {
                for (place, item, done) in work {
                    {
                        let _here = place.enter();
                        drop(block_of(item));
                    }
                    let _ = done.send(());
                }
            });
            orders
        });
        for item in 0..ITEMS {
            let (done, is_done) = channel();
            worker.send((place_of(item), item, done)).unwrap();
            is_done.recv().unwrap();
        }
    });
    assert_one_block_an_item(&run);
}

#[test]
fn tasks_of_rayons_pool_book_where_they_were_spawned() {
    let mut pool = None;
    let run = scenario("rayon spawn").run(|_| {
        let pool = pool.get_or_insert_with(|| {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(2);
            builder.build().unwrap()
        });
        pool.scope(|scope| {
            for item in 0..ITEMS {
                let work = place_of(item).carry(move || drop(block_of(item)));
                scope.spawn(move |_| work());
            }
        });
    });
    assert_one_block_an_item(&run);
}

#[test]
fn a_parallel_iterator_books_each_item_where_its_closure_enters() {
    use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
    let mut pool = None;
    let run = scenario("rayon iterator").run(|_| {
        let pool = pool.get_or_insert_with(|| {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(3);
            builder.build().unwrap()
        });
        let places: Vec<Place> = (0..ITEMS).map(place_of).collect();
        pool.install(|| {
            (0..ITEMS).into_par_iter().for_each(|item| {
                let _here = places[item as usize].enter();
                drop(block_of(item));
            });
        });
    });
    assert_one_block_an_item(&run);
}

#[test]
fn a_pools_thread_is_nowhere_again_when_the_task_is_done() {
    let mut pool = None;
    let run = scenario("rayon afterwards").run(|_| {
        let pool = pool.get_or_insert_with(|| {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(1);
            builder.build().unwrap()
        });
        for item in 0..ITEMS {
            let work = place_of(item).carry(move || drop(block_of(item)));
            pool.install(work);
            // On the same thread: must be in no item's book.
            pool.install(|| drop(black_box(vec![1_u8; 777])));
        }
    });
    assert_one_block_an_item(&run);
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).build().unwrap()
}

#[test]
fn tokios_blocking_pool_books_where_the_work_was_handed_over() {
    let mut tokio = None;
    let run = scenario("spawn_blocking").run(|_| {
        let tokio = tokio.get_or_insert_with(runtime);
        tokio.block_on(async {
            let tasks = (0..ITEMS).map(|item| {
                let work = place_of(item).carry(move || drop(block_of(item)));
                tokio::task::spawn_blocking(work)
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
    });
    assert_one_block_an_item(&run);
}

/// Lets other tasks go first. Tokio's own `yield_now` keeps a list, whose memory would be an item's.
async fn be_polled_again() {
    let mut was_polled = false;
    poll_fn(|context| {
        if was_polled {
            return Poll::Ready(());
        }
        was_polled = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn a_task_with_a_span_is_in_its_item_each_time_that_it_is_polled() {
    let mut tokio = None;
    let run = scenario("instrumented tasks").run(|_| {
        let tokio = tokio.get_or_insert_with(|| {
            let registry = tracing_subscriber::registry();
            registry.with(tidegate::PhaseLayer::new()).init();
            runtime()
        });
        tokio.block_on(async {
            let tasks = (0..ITEMS).map(|item| {
                let proof = async move {
                    // Polled anew after each of these, by whichever worker comes.
                    be_polled_again().await;
                    let block = block_of(item);
                    be_polled_again().await;
                    drop(block);
                };
                tokio::spawn(proof.instrument(tracing::info_span!("msm", partition = item)))
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
    });
    assert_one_block_an_item(&run);
}

#[test]
fn work_that_nobody_carried_is_in_no_items_book() {
    let run = scenario("not carried").run(|_| {
        for item in 0..ITEMS {
            let _phase = tidegate::phase("msm");
            let _item = tidegate::item(item);
            thread::scope(|scope| {
                scope.spawn(|| drop(black_box(vec![1_u8; 1 << 20])));
            });
        }
    });
    run.assert_passes();
    let mib = |amount: Amount| amount.bytes >> 20;
    let items = run.books().items.iter();
    let with_items: i64 = items.map(|book| mib(book.allocated)).sum();
    assert_eq!(with_items, 0, "{run}");
    let phases = run.books().phases.iter();
    let of_phase: i64 = phases
        .filter(|book| book.phase == "msm" && book.layer == Layer::RustHeap)
        .map(|book| mib(book.allocated))
        .sum();
    let measured = run.books().rounds.len() as u32 - WARMUP;
    assert_eq!(
        of_phase,
        i64::from(measured * ITEMS),
        "the only active phase is inherited\n{run}"
    );
}
