//! A process in a pod: joins a network namespace and a cgroup, then listens and dials as it is told
//! on stdin. Each accepted connection is told how the accepting end sees it; the connecting end
//! reports both.
//!
//! Started with `--here` it stays where it is, does what its further arguments say, and goes on to serve
//! what it listens on: so a container runs it.

mod dial;
mod flood;
mod identity;
mod listen;
mod names;

use std::{
    env, fs,
    fs::File,
    io::{self, BufRead as _, Write as _},
    process, thread,
};

use anyhow::{Context as _, Result};
use lab::protocol::{Request, Response};
use nix::sched::{CloneFlags, setns};

use crate::{dial::Held, listen::Groups};

fn main() -> Result<()> {
    const USAGE: &str = "usage: sidetrack-actor NETNS CGROUP | sidetrack-actor --here [REQUEST...]";
    let mut args = env::args().skip(1);
    let netns = args.next().context(USAGE)?;
    if netns == "--here" {
        serve(args.map(Ok))?;
        loop {
            thread::park();
        }
    }
    let cgroup = args.next().context(USAGE)?;
    fs::write(format!("{cgroup}/cgroup.procs"), process::id().to_string())
        .with_context(|| format!("join cgroup {cgroup}"))?;
    let netns = File::open(&netns).with_context(|| format!("open {netns}"))?;
    setns(netns, CloneFlags::CLONE_NEWNET).context("join the network namespace")?;

    serve(io::stdin().lock().lines())
}

/// Answers on stdout.
fn serve(requests: impl Iterator<Item = io::Result<String>>) -> Result<()> {
    let mut groups = Groups::default();
    let mut held = Held::default();
    for line in requests {
        let request: Request = serde_json::from_str(&line?)?;
        let response = answer(request, &mut groups, &mut held)
            .unwrap_or_else(|error| Response::Failed(format!("{error:#}")));
        let mut text = serde_json::to_string(&response)?;
        text.push('\n');
        io::stdout().write_all(text.as_bytes())?;
    }
    Ok(())
}

fn answer(request: Request, groups: &mut Groups, held: &mut Held) -> Result<Response> {
    Ok(match request {
        Request::Listen(listen) => Response::Listening(groups.open(&listen)?),
        Request::Close { id, socket } => {
            groups.close(id, socket)?;
            Response::Done
        }
        Request::Dial(dial) => {
            let result = dial::dial(&dial)?;
            Response::Dialed(result.map(|(connected, _)| Box::new(connected)))
        }
        Request::DialAll(dials) => Response::AllDialed(
            dials
                .iter()
                .map(|dial| Ok(dial::dial(dial)?.map(|(connected, _)| connected)))
                .collect::<Result<_>>()?,
        ),
        Request::Hold(dial) => {
            let result = dial::dial(&dial)?;
            Response::Dialed(result.map(|(connected, socket)| {
                held.keep(socket);
                Box::new(connected)
            }))
        }
        Request::Flood { to, count } => Response::Flooded(flood::begin(to, count, held)?),
        Request::Hang(address) => {
            held.keep(flood::hang(address)?);
            Response::Done
        }
        Request::Syns { from, to, count } => {
            flood::syns(from, to, count)?;
            Response::Done
        }
        Request::Echo => Response::Count(held.echo()),
        Request::Again => Response::AllDialed(held.again()),
    })
}
