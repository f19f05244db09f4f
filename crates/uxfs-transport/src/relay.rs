//! Which threads read requests: as many as are needed, up to the number of CPUs, and others in place of those that wait in the engine.
//!
//! Each thread of a session is *reading* (inside the session, waiting for a request), *running* (it answers one), *waiting* in the
//! engine, or *parked* here after a request, because others do the work. A client that asks for one thing after the other gets its
//! answers from one thread, whose caches are warm: the kernel would pass its requests round among all that read.
//!
//! 1. Nobody parks who would leave nobody to read, unless every CPU has a thread that runs.
//! 2. Who takes a request that is not short or turns out not to be, finds requests waiting time and again, or begins to wait, and leaves
//!    nobody to read calls a parked thread, unless every CPU has one that runs. A short request holds up those behind it for little
//!    longer than a thread would take to wake, also with all the data that a request may have.
//! 3. The first thread that leaves the session calls all that are parked: the session ends. Who is parked looks now and then anyway.

use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use uxfs_sync::{BlockingHook, install_blocking_hook};

/// The threads of a session.
pub struct Relay {
    cpus: usize,
    /// How long a parked thread waits before it looks by itself whether it is needed.
    longest: Duration,
    reading: AtomicUsize,
    running: AtomicUsize,
    parked: AtomicUsize,
    /// Requests since one was not short or waited for a reader, less [`NEXT`] for each thread that parked.
    calm: AtomicUsize,
    /// Those that are parked. The last one is called first: its buffers are warm.
    bench: Mutex<Vec<Arc<Seat>>>,
    ended: AtomicBool,
}

/// After so many requests, for each of which those that read were enough, one of these parks.
const CALM: usize = 128;
/// After so many more the next one does.
const NEXT: usize = 32;

/// So many steps are not short any more.
const MANY: u32 = 10;

/// Where a parked thread waits.
#[derive(Default)]
struct Seat {
    called: Mutex<bool>,
    call: Condvar,
}

thread_local! {
    /// The session that this thread belongs to.
    static MINE: RefCell<Option<Member>> = const { RefCell::new(None) };
    /// Steps of its request, modulo [`MANY`].
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// A thread of a session: it ends with it.
struct Member(Arc<Relay>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct Hook;

impl BlockingHook for Hook {
    fn enter(&self) {
        MINE.with_borrow(|m| m.iter().for_each(|r| r.0.stops_running()));
    }
    fn leave(&self) {
        MINE.with_borrow(|m| m.iter().for_each(|r| _ = r.0.running.fetch_add(1, Ordering::SeqCst)));
    }
    fn step(&self) {
        let steps = STEPS.get() + 1;
        STEPS.set(steps % MANY);
        if steps == MANY {
            MINE.with_borrow(|m| m.iter().for_each(|r| r.0.takes_long()));
        }
    }
}

/// Proof that a request is being answered.
#[must_use]
pub struct Turn<'a>(&'a Relay);

impl Relay {
    /// For a session of so many threads. A parked one looks after each `longest` whether it is needed.
    pub fn new(threads: usize, cpus: usize, longest: Duration) -> Arc<Relay> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| install_blocking_hook(Box::new(Hook)));
        let zero = || AtomicUsize::new(0);
        let (running, parked, reading) = (zero(), zero(), AtomicUsize::new(threads));
        Arc::new(Relay { cpus, longest, reading, running, parked, calm: zero(), bench: Mutex::default(), ended: AtomicBool::new(false) })
    }

    /// The calling thread is one of the session's, until it ends.
    pub fn join(self: &Arc<Self>) {
        MINE.set(Some(Member(self.clone())));
    }

    /// The calling thread, which has joined, has a request; others should read meanwhile if it is not `alone`.
    pub fn begin(&self, alone: bool) -> Turn<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.reading.fetch_sub(1, Ordering::SeqCst);
        STEPS.set(0);
        if alone {
            self.calm.fetch_add(1, Ordering::Relaxed);
        } else {
            self.takes_long();
        }
        Turn(self)
    }

    /// True if one thread does all the work, and there is a CPU for it: whoever asks has one, too.
    pub fn is_calm(&self) -> bool {
        self.cpus > 1 && self.reading.load(Ordering::Relaxed) == 1 && self.running.load(Ordering::Relaxed) == 0
    }

    fn takes_long(&self) {
        self.calm.store(0, Ordering::Relaxed);
        self.look_for_reader();
    }

    fn stops_running(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.look_for_reader();
    }

    fn needs_reader(&self) -> bool {
        self.reading.load(Ordering::SeqCst) == 0 && self.running.load(Ordering::SeqCst) < self.cpus
    }

    fn look_for_reader(&self) {
        // Of this look and that of whoever parks, one sees the other.
        if self.needs_reader() && self.parked.load(Ordering::SeqCst) > 0 {
            self.call();
        }
    }

    /// Calls the thread that parked last; false if there is none.
    fn call(&self) -> bool {
        let Some(seat) = self.leave_bench(|bench| bench.pop()) else { return false };
        *seat.called.lock() = true;
        seat.call.notify_one();
        true
    }

    /// A thread leaves the session: the others are to see that it ends.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        while self.call() {}
    }

    /// Takes a thread off the bench, which counts as one that reads from now on.
    fn leave_bench(&self, take: impl FnOnce(&mut Vec<Arc<Seat>>) -> Option<Arc<Seat>>) -> Option<Arc<Seat>> {
        let mut bench = self.bench.lock();
        let seat = take(&mut bench)?;
        self.parked.fetch_sub(1, Ordering::SeqCst);
        self.reading.fetch_add(1, Ordering::SeqCst);
        Some(seat)
    }

    /// Waits until somebody calls, if others do the work. Then the calling thread counts as one that reads.
    fn rest(&self) {
        let (reading, running) = (self.reading.load(Ordering::SeqCst), self.running.load(Ordering::SeqCst));
        let enough = |calm: usize| calm.checked_sub(NEXT).filter(|_| calm >= CALM);
        let spare = reading > 0 && self.calm.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok();
        if reading == 0 && running < self.cpus || reading + running < self.cpus && !spare {
            self.reading.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let seat = Arc::new(Seat::default());
        self.bench.lock().push(seat.clone());
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut called = seat.called.lock();
        while !*called && !self.needs_reader() && !self.ended.load(Ordering::SeqCst) {
            seat.call.wait_for(&mut called, self.longest);
        }
        drop(called);
        // Unless somebody has called.
        self.leave_bench(|bench| {
            let mine = bench.iter().position(|s| Arc::ptr_eq(s, &seat))?;
            Some(bench.remove(mine))
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;
    use std::time::Instant;

    /// What a request does: whether others should read meanwhile, and what it waits for.
    type Request = (bool, Option<Receiver<()>>);
    /// Takes no time, with nothing behind it.
    const SHORT: Request = (true, None);
    /// Takes its time.
    const LONG: Request = (false, None);
    const FOREVER: Duration = Duration::from_secs(3600);

    /// A session: threads that take requests from a queue; some wait for a message.
    fn serve(threads: usize, cpus: usize, longest: Duration, requests: Receiver<Request>) -> (Arc<Relay>, Vec<JoinHandle<u64>>) {
        let (relay, queue) = (Relay::new(threads, cpus, longest), Arc::new(Mutex::new(requests)));
        let start = |_| {
            let (relay, queue) = (relay.clone(), queue.clone());
            std::thread::spawn(move || {
                relay.join();
                let mut answered = 0;
                loop {
                    let Ok((alone, until)) = queue.lock().recv() else { return answered };
                    let _turn = relay.begin(alone);
                    if let Some(until) = until {
                        let _ = uxfs_sync::blocking(|| until.recv());
                    }
                    answered += 1;
                }
            })
        };
        let all = (0..threads).map(start).collect();
        (relay, all)
    }

    fn parked(r: &Relay) -> usize {
        r.parked.load(Ordering::SeqCst)
    }

    fn reading(r: &Relay) -> usize {
        r.reading.load(Ordering::SeqCst)
    }

    fn wait_until(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !what() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_waits_is_stood_in_for_and_others_rest() {
        let (ask, requests) = channel();
        let (relay, _) = serve(8, 2, FOREVER, requests);
        // As long as nobody waits, two do the work.
        wait_until(|| {
            ask.send(LONG).unwrap();
            parked(&relay) == 6
        });
        for n in 1..8 {
            // One more waits, and one more reads in its place, until the last one.
            let (go, until) = channel();
            ask.send((n % 2 == 0, Some(until))).unwrap();
            wait_until(|| reading(&relay) > 0 && relay.running.load(Ordering::SeqCst) == 0 && reading(&relay) + parked(&relay) == 8 - n);
            std::mem::forget(go);
        }
        assert_eq!((reading(&relay), parked(&relay)), (1, 0));
    }

    #[test]
    fn one_thread_answers_what_is_short_and_others_read_beside_what_is_not() {
        let (ask, requests) = channel();
        // They look for themselves now and then, and find that they are not needed.
        let (relay, _) = serve(8, 2, Duration::from_millis(1), requests);
        let all_but = |n: usize, request: fn() -> Request| {
            wait_until(|| {
                ask.send(request()).unwrap();
                parked(&relay) == 8 - n
            });
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((reading(&relay), parked(&relay)), (n, 8 - n));
        };
        all_but(1, || SHORT);
        all_but(2, || LONG);
        all_but(1, || SHORT);
    }

    #[test]
    fn what_turns_out_to_be_long_is_stood_in_for() {
        let relay = Relay::new(2, 2, FOREVER);
        let other = relay.clone();
        relay.calm.store(CALM, Ordering::SeqCst);
        relay.join();
        // The other one finds that it is not needed.
        let other = std::thread::spawn(move || {
            other.join();
            drop(other.begin(true));
            other.running.load(Ordering::SeqCst)
        });
        wait_until(|| parked(&relay) == 1);
        let turn = relay.begin(true);
        (1..MANY).for_each(|_| uxfs_sync::step());
        assert_eq!((reading(&relay), parked(&relay)), (0, 1));
        uxfs_sync::step();
        assert_eq!(reading(&relay), 1);
        assert_eq!(other.join().unwrap(), 1);
        drop(turn);
    }

    #[test]
    fn a_session_that_ends_finds_all_its_threads() {
        let (ask, requests) = channel();
        let (relay, all) = serve(8, 2, FOREVER, requests);
        wait_until(|| {
            ask.send(LONG).unwrap();
            parked(&relay) > 0
        });
        drop(ask);
        all.into_iter().for_each(|t| assert!(t.join().is_ok()));
        assert_eq!((reading(&relay), parked(&relay)), (8, 0));
    }
}
