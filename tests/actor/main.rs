//! A process in a pod: joins a network namespace and a cgroup, then listens and dials as it is told
//! on stdin. Each accepted connection is told how the accepting end sees it; the connecting end
//! reports both.

mod dial;
mod identity;
mod listen;
mod names;

use std::{
    env, fs,
    fs::File,
    io::{self, BufRead as _, Write as _},
    process,
};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use support::protocol::{Request, Response};

use crate::{dial::Held, listen::Groups};

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    let netns = args.next().context("usage: sidetrack-actor NETNS CGROUP")?;
    let cgroup = args.next().context("usage: sidetrack-actor NETNS CGROUP")?;
    fs::write(format!("{cgroup}/cgroup.procs"), process::id().to_string())
        .with_context(|| format!("join cgroup {cgroup}"))?;
    let netns = File::open(&netns).with_context(|| format!("open {netns}"))?;
    setns(netns, CloneFlags::CLONE_NEWNET).context("join the network namespace")?;

    let mut groups = Groups::default();
    let mut held = Held::default();
    for line in io::stdin().lock().lines() {
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
            Response::Dialled(result.map(|(connected, _)| Box::new(connected)))
        }
        Request::DialAll(dials) => Response::AllDialled(
            dials
                .iter()
                .map(|dial| Ok(dial::dial(dial)?.map(|(connected, _)| connected)))
                .collect::<Result<_>>()?,
        ),
        Request::Hold(dial) => {
            let result = dial::dial(&dial)?;
            Response::Dialled(result.map(|(connected, socket)| {
                held.keep(socket);
                Box::new(connected)
            }))
        }
        Request::Echo => Response::Count(held.echo()),
    })
}
