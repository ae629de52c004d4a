use std::{
    io::{self, Write as _},
    sync::{Arc, Mutex, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use super::{Log, MAX_BYTES};

/// Takes a line for each permit.
struct Slow {
    permits: mpsc::Receiver<()>,
    taken: Arc<Mutex<Vec<u8>>>,
}

impl io::Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.permits.recv();
        self.taken.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nobody_waits_for_a_reader_that_hangs() {
    let (permit, permits) = mpsc::channel();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let slow = Slow {
        permits,
        taken: Arc::clone(&taken),
    };
    let log = Log::start(slow).unwrap();
    let mut writer = log.writer();
    let line = vec![b'x'; 64 << 10];
    let lines = MAX_BYTES / line.len();
    let began = Instant::now();
    for _ in 0..lines + 3 {
        writer.write_all(&line).unwrap();
    }
    drop(log);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    // It reads again.
    drop(permit);
    while writer.counts.waiting.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(taken.lock().unwrap().len(), lines * line.len());
}

#[test]
fn the_end_waits_for_the_lines_before() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (permit, permits) = mpsc::channel();
    drop(permit);
    let log = Log::start(Slow {
        permits,
        taken: Arc::clone(&taken),
    })
    .unwrap();
    log.writer().write_all(b"last\n").unwrap();
    drop(log);
    assert_eq!(*taken.lock().unwrap(), b"last\n");
}
