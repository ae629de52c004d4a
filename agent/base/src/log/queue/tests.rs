use std::{
    io::{self, Write as _},
    sync::{Arc, Mutex, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use super::{Log, MAX_BYTES};

/// Takes a line for each permit.
struct Slow {
    permits: mpsc::Receiver<()>,
    received_bytes: Arc<Mutex<Vec<u8>>>,
}

impl io::Write for Slow {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.permits.recv();
        self.received_bytes.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_one_waits_for_a_reader_that_hangs() {
    let (permit, permits) = mpsc::channel();
    let received_bytes = Arc::new(Mutex::new(Vec::new()));
    let slow = Slow {
        permits,
        received_bytes: Arc::clone(&received_bytes),
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
    assert_eq!(received_bytes.lock().unwrap().len(), lines * line.len());
}

#[test]
fn the_end_waits_for_the_lines_before() {
    let received_bytes = Arc::new(Mutex::new(Vec::new()));
    let (permit, permits) = mpsc::channel();
    drop(permit);
    let log = Log::start(Slow {
        permits,
        received_bytes: Arc::clone(&received_bytes),
    })
    .unwrap();
    log.writer().write_all(b"last\n").unwrap();
    drop(log);
    assert_eq!(*received_bytes.lock().unwrap(), b"last\n");
}

#[test]
fn of_a_long_last_line_start_and_end_are_written() {
    let (permit, permits) = mpsc::channel();
    drop(permit);
    let received_bytes = Arc::new(Mutex::new(Vec::new()));
    let to = Slow {
        permits,
        received_bytes: Arc::clone(&received_bytes),
    };
    let log = Log::start(to).unwrap();
    let middle = "ü".repeat(MAX_BYTES);
    log.line(&format!("load it: {middle}: Permission denied"));
    drop(log);
    let received = String::from_utf8(received_bytes.lock().unwrap().clone()).unwrap();
    assert!(received.starts_with("load it: ü"), "{}", received.len());
    assert!(received.ends_with("ü: Permission denied\n"));
    assert!(received.len() < MAX_BYTES);
}
