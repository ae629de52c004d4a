//! The helper's side: each call in a thread of its own, answered as it is done.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
};

use serde_json::Value;

use super::{Answer, Job, MAX_MESSAGE, Outcome, Question};
use crate::kernel::sys;

/// A kind of job that the helper can do.
#[derive(Clone, Copy)]
pub struct Runner {
    name: &'static str,
    run: fn(Value) -> Outcome,
}

impl Runner {
    /// Of a job.
    #[must_use]
    pub const fn of<J: Job>() -> Self {
        Self {
            name: J::NAME,
            run: run::<J>,
        }
    }
}

/// Does a job, with its argument and answer as JSON.
pub(super) fn run<J: Job>(argument: Value) -> Outcome {
    let job: J = serde_json::from_value(argument)?;
    let (answer, descriptor) = job.run()?;
    Ok((serde_json::to_value(answer)?, descriptor))
}

/// Answers the agent, which is at the other end of standard input, until it has ended.
///
/// # Errors
/// If standard input is not the agent's.
pub fn serve(runners: &'static [Runner]) -> io::Result<()> {
    sys::keep_little_memory();
    serve_on(io::stdin().as_fd().try_clone_to_owned()?, runners)
}

pub(super) fn serve_on(socket: OwnedFd, runners: &'static [Runner]) -> io::Result<()> {
    let socket = Arc::new(socket);
    let mut room = vec![0; MAX_MESSAGE];
    loop {
        let length = match sys::receive_message(socket.as_fd(), &mut room) {
            // With an answer that it has not read, its end resets the connection.
            Ok((0, _)) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            received => received?.0,
        };
        let question: Question = serde_json::from_slice(&room[..length])?;
        let number = question.number;
        let own = Arc::clone(&socket);
        let started = thread_of(move || answer(&own, runners, question));
        if let Err(error) = started {
            send(socket.as_fd(), number, Err(error));
        }
    }
}

/// Starts a thread for a job.
pub(super) fn thread_of(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    /// Jobs read files; the largest parses none of their contents.
    const STACK: usize = 256 << 10;
    let named = thread::Builder::new().name("foreign-file".to_owned());
    named.stack_size(STACK).spawn(work).map(drop)
}

fn answer(socket: &OwnedFd, runners: &[Runner], question: Question) {
    let runner = runners.iter().find(|it| it.name == question.job);
    let outcome = match runner {
        Some(runner) => (runner.run)(question.argument),
        None => Err(io::Error::other("this build has no such job")),
    };
    send(socket.as_fd(), question.number, outcome);
}

fn send(socket: BorrowedFd<'_>, number: u64, outcome: Outcome) {
    let text = serde_json::to_vec(&Answer::of(number, &outcome));
    let text = text.ok().filter(|text| text.len() <= MAX_MESSAGE);
    let text = text.or_else(|| {
        let long = Err(io::Error::other("the answer is too long"));
        serde_json::to_vec(&Answer::of(number, &long)).ok()
    });
    let descriptor = outcome.ok().and_then(|(_, descriptor)| descriptor);
    // An agent that has ended reads no answer.
    if let Some(text) = text {
        let _ = sys::send_message(socket, &text, descriptor.as_ref().map(OwnedFd::as_fd));
    }
}
