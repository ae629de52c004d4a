//! Files, paths and disks of others. Whatever is read from them or written to them may never return, and a thread that
//! waits for a disk keeps its process from ending, even after SIGKILL. So the agent has such calls made by a process
//! of its own, the helper, which it can leave behind.
//!
//! Invariants: the agent waits for an answer until its deadline at most; of each holder (such as the namespace of a
//! pod) [`MAX_OF_HOLDER`] calls run at a time and [`MAX_CALLS`] of all, calls that hang included; a holder whose calls
//! hang is refused at once. Contents and network namespaces come as descriptors, which never wait.

mod helper;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    os::fd::{AsFd as _, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, mpsc},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use self::helper::{Runner, serve};
use crate::kernel::sys;

/// The command that runs the helper.
pub const COMMAND: &str = "foreign-files";

/// Calls of one holder at a time.
const MAX_OF_HOLDER: usize = 2;
/// Calls of all holders at a time: a thread of the helper each.
const MAX_CALLS: usize = 64;
/// What holders begin with that stand for directories with network namespaces. Who writes manifests may name any number.
pub const NAMESPACES: &str = "namespaces in ";
/// Calls of all of these at a time.
const MAX_OF_NAMESPACES: usize = 16;
/// Calls of one holder that wait for their turn.
const MAX_WAITING: usize = 256;
/// A call that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(1);
/// Bytes of a question or an answer.
const MAX_MESSAGE: usize = 64 << 10;

/// What the helper does for the agent.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// Its name.
    const NAME: &'static str;
    /// What it answers.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Does it; a descriptor may come with the answer.
    ///
    /// # Errors
    /// Those of the file.
    fn run(self) -> io::Result<(Self::Answer, Option<OwnedFd>)>;
}

/// What becomes of a call.
type Outcome = io::Result<(Value, Option<OwnedFd>)>;
type Done = Box<dyn FnOnce(Outcome) + Send>;

/// A question to the helper.
#[derive(Serialize, Deserialize)]
struct Question {
    number: u64,
    job: String,
    argument: Value,
}

/// Its answer.
#[derive(Serialize, Deserialize)]
struct Answer {
    number: u64,
    answer: Value,
    /// Why there is no answer, and whether that is because nothing is there.
    problem: Option<(String, bool)>,
}

impl Answer {
    fn of(number: u64, outcome: &Outcome) -> Self {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let (answer, problem) = match outcome {
            Ok((answer, _)) => (answer.clone(), None),
            Err(error) => (Value::Null, Some((error.to_string(), is_missing(error)))),
        };
        Self {
            number,
            answer,
            problem,
        }
    }

    fn outcome(self, descriptor: Option<OwnedFd>) -> Outcome {
        match self.problem {
            None => Ok((self.answer, descriptor)),
            Some((text, true)) => Err(io::Error::new(io::ErrorKind::NotFound, text)),
            Some((text, false)) => Err(io::Error::other(text)),
        }
    }
}

/// The calls of this process.
#[derive(Default)]
struct Calls {
    number: u64,
    running: HashMap<u64, Running>,
    /// Those that wait, by their holder.
    waiting: BTreeMap<String, VecDeque<Call>>,
    /// Holders with a call that a caller has given up.
    slow: BTreeSet<String>,
    /// Whether the helper makes the calls; otherwise threads of this process do.
    has_helper: bool,
    helper: Option<Helper>,
}

/// A call.
struct Call {
    question: Question,
    run: fn(Value) -> Outcome,
    done: Done,
}

/// A call that is being made.
struct Running {
    holder: String,
    since: Instant,
    /// By which helper: the number of its first call.
    helper: Option<u64>,
    done: Done,
}

/// The helper.
struct Helper {
    socket: Arc<OwnedFd>,
    /// The number of its first call.
    first: u64,
}

static CALLS: LazyLock<Mutex<Calls>> = LazyLock::new(Mutex::default);

/// Has the helper make the calls of this process from now on. It is for the agent: commands end soon, and threads are
/// enough for them.
pub fn use_helper() {
    CALLS.lock().has_helper = true;
}

/// Makes a call, and passes its outcome to `done`: on another thread, or at once if the call is refused.
pub fn start<J: Job>(
    holder: &str,
    job: &J,
    done: impl FnOnce(io::Result<(J::Answer, Option<OwnedFd>)>) + Send + 'static,
) {
    let typed = |(answer, descriptor): (Value, _)| {
        let answer = serde_json::from_value(answer).map_err(io::Error::from);
        answer.map(|answer| (answer, descriptor))
    };
    let argument = match serde_json::to_value(job) {
        Ok(argument) => argument,
        Err(error) => return done(Err(error.into())),
    };
    let mut calls = CALLS.lock();
    calls.number += 1;
    let call = Call {
        question: Question {
            number: calls.number,
            job: J::NAME.to_owned(),
            argument,
        },
        run: helper::run::<J>,
        done: Box::new(move |outcome| done(outcome.and_then(typed))),
    };
    let refused = calls.admit(holder, call);
    drop(calls);
    if let Err((done, problem)) = refused {
        done(Err(problem));
    }
}

/// Makes a call, and waits for its outcome.
///
/// # Errors
/// Those of the job, or that it has no outcome in this time.
pub fn wait<J: Job>(
    holder: &str,
    job: &J,
    timeout: Duration,
) -> io::Result<(J::Answer, Option<OwnedFd>)> {
    let (sender, outcome) = mpsc::sync_channel(1);
    start(holder, job, move |outcome| {
        let _ = sender.send(outcome);
    });
    let outcome = outcome.recv_timeout(timeout);
    outcome.unwrap_or_else(|_| Err(give_up(holder, timeout)))
}

/// The same without a thread that waits.
///
/// # Errors
/// Those of [`wait`].
pub async fn ask<J: Job>(
    holder: &str,
    job: &J,
    timeout: Duration,
) -> io::Result<(J::Answer, Option<OwnedFd>)> {
    let (sender, outcome) = tokio::sync::oneshot::channel();
    start(holder, job, move |outcome| {
        let _ = sender.send(outcome);
    });
    match tokio::time::timeout(timeout, outcome).await {
        Ok(Ok(outcome)) => outcome,
        _ => Err(give_up(holder, timeout)),
    }
}

/// A caller waits no longer. Until a call of that holder returns, nothing else waits for it either.
fn give_up(holder: &str, timeout: Duration) -> io::Error {
    let mut calls = CALLS.lock();
    if calls.running.values().any(|it| it.holder == holder) {
        calls.slow.insert(holder.to_owned());
    }
    let text = format!("its file system does not answer within {timeout:?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl Calls {
    /// Makes a call, or puts it behind others of its holder; or refuses it.
    fn admit(&mut self, holder: &str, call: Call) -> Result<(), (Done, io::Error)> {
        let of_holder = self.running.values().filter(|it| it.holder == holder);
        let (running, hang) = of_holder.fold((0, true), |(running, hang), it| {
            (running + 1, hang && it.since.elapsed() > HANGS_AFTER)
        });
        let is_slow = self.slow.contains(holder) || running >= MAX_OF_HOLDER && hang;
        let problem = if is_slow {
            format!("its file system does not answer to another read for {holder}")
        } else if holder.starts_with(NAMESPACES) && self.of_namespaces() >= MAX_OF_NAMESPACES {
            format!("{MAX_OF_NAMESPACES} directories with namespaces do not answer")
        } else if running < MAX_OF_HOLDER && self.running.len() < MAX_CALLS {
            return self.make(holder, call);
        } else if self.running.len() >= MAX_CALLS {
            format!("{MAX_CALLS} reads hang, since their file systems do not answer")
        } else {
            let waiting = self.waiting.entry(holder.to_owned()).or_default();
            if waiting.len() < MAX_WAITING {
                waiting.push_back(call);
                return Ok(());
            }
            format!("{MAX_WAITING} reads for {holder} wait already")
        };
        Err((
            call.done,
            io::Error::new(io::ErrorKind::WouldBlock, problem),
        ))
    }

    /// How many directories with namespaces are being looked at.
    fn of_namespaces(&self) -> usize {
        let holders = self.running.values().map(|it| &it.holder);
        holders.filter(|it| it.starts_with(NAMESPACES)).count()
    }

    fn make(&mut self, holder: &str, call: Call) -> Result<(), (Done, io::Error)> {
        let Call {
            question,
            run,
            done,
        } = call;
        let number = question.number;
        let made = if self.has_helper {
            self.send(&question).map(Some)
        } else {
            let argument = question.argument;
            helper::thread_of(move || finish(number, run(argument))).map(|()| None)
        };
        let helper = match made {
            Ok(helper) => helper,
            Err(problem) => return Err((done, problem)),
        };
        let running = Running {
            holder: holder.to_owned(),
            since: Instant::now(),
            helper,
            done,
        };
        self.running.insert(number, running);
        Ok(())
    }

    /// Sends a question to the helper, which is started if none runs. Answers which it is.
    fn send(&mut self, question: &Question) -> io::Result<u64> {
        let helper = match &self.helper {
            Some(helper) => helper,
            None => self.helper.insert(Helper::start(question.number)?),
        };
        let text = serde_json::to_vec(question)?;
        if text.len() > MAX_MESSAGE {
            return Err(io::Error::other("the question is too long"));
        }
        sys::send_message(helper.socket.as_fd(), &text, None)?;
        Ok(helper.first)
    }

    /// The next call of a holder has its turn.
    fn next(&mut self, holder: &str) -> Option<(Done, io::Error)> {
        let waiting = self.waiting.get_mut(holder)?;
        let call = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(holder);
        }
        self.make(holder, call?).err()
    }
}

/// A call has its outcome.
fn finish(number: u64, outcome: Outcome) {
    let mut calls = CALLS.lock();
    let Some(running) = calls.running.remove(&number) else {
        return;
    };
    calls.slow.remove(&running.holder);
    let refused = calls.next(&running.holder);
    drop(calls);
    (running.done)(outcome);
    if let Some((done, problem)) = refused {
        done(Err(problem));
    }
}

impl Helper {
    fn start(first: u64) -> io::Result<Self> {
        let (own, other) = sys::message_sockets()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(COMMAND).stdin(other).stdout(Stdio::null());
        let child = command.spawn()?;
        let socket = Arc::new(own);
        let answers = Arc::clone(&socket);
        helper::thread_of(move || receive(&answers, first, child))?;
        Ok(Self { socket, first })
    }
}

/// Receives the helper's answers until it has ended.
fn receive(socket: &OwnedFd, first: u64, mut child: Child) {
    let mut room = vec![0; MAX_MESSAGE];
    while let Ok((length @ 1.., descriptor)) = sys::receive_message(socket.as_fd(), &mut room) {
        if let Ok(answer) = serde_json::from_slice::<Answer>(&room[..length]) {
            finish(answer.number, answer.outcome(descriptor));
        }
    }
    let mut calls = CALLS.lock();
    calls.helper.take_if(|helper| helper.first == first);
    let of_it = |it: &Running| it.helper == Some(first);
    let numbers = calls.running.iter().filter(|(_, it)| of_it(it));
    let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
    drop(calls);
    for number in numbers {
        let ended = io::Error::other("the process that reads it has ended");
        finish(number, Err(ended));
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests;
