//! A process in a pod: joins a network namespace and a cgroup, then listens and dials as
//! requested on stdin. The accepting end of a connection sends how it sees the connection; the
//! connecting end reports both.
//!
//! Started with `--here` it stays where it is, does what its further arguments say, and then
//! serves what it listens on. A container runs it like this.

mod crowd;
mod dial;
mod flood;
mod identity;
mod listen;
mod names;
mod nested;
mod ring;
mod together;
mod tricks;
mod udp;
mod visit;

use std::{path::PathBuf, thread, time::Duration};

use anyhow::{Result, bail};
use clap::Parser;
use lab::{
    helper,
    protocol::{Connected, Dial, Request, Response},
};

use crate::{dial::Held, listen::Groups, together::together};

/// Listens and dials in a pod, as requested on stdin.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-actor")]
struct Options {
    /// Path of the network namespace to join.
    #[arg(required_unless_present = "here")]
    netns: Option<PathBuf>,
    /// Directory of the cgroup to join.
    #[arg(required_unless_present = "here")]
    cgroup: Option<PathBuf>,
    /// Join only the cgroup, and make sockets in the namespace, with this mark.
    #[arg(long, value_name = "MARK", requires = "netns")]
    visit: Option<u32>,
    /// Join nothing, answer these requests, and continue to serve.
    #[arg(long, value_name = "REQUEST", num_args = 0.., conflicts_with_all = ["netns", "cgroup"])]
    here: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(requests) = options.here {
        let parsed = requests.iter().map(|text| Ok(serde_json::from_str(text)?));
        serve(parsed)?;
        loop {
            thread::park();
        }
    }
    let (Some(netns), Some(cgroup)) = (options.netns, options.cgroup) else {
        bail!("give a network namespace and a cgroup");
    };
    helper::join_cgroup(&cgroup)?;
    match options.visit {
        Some(mark) => visit::begin(&netns, mark)?,
        None => helper::join_netns(&netns)?,
    }
    serve(helper::requests())
}

/// Answers on stdout.
fn serve(requests: impl Iterator<Item = Result<Request>>) -> Result<()> {
    let mut groups = Groups::default();
    let mut held = Held::default();
    for request in requests {
        let response = answer(request?, &mut groups, &mut held)
            .unwrap_or_else(|error| Response::Failed(format!("{error:#}")));
        helper::say(&response)?;
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
        Request::Dial(dial) => Response::Dialed(seen(&dial)?.map(Box::new)),
        Request::DialAll(dials) => {
            Response::AllDialed(dials.iter().map(seen).collect::<Result<_>>()?)
        }
        Request::DialTogether(dials) => Response::AllDialed(together(&dials, seen)?),
        Request::HoldAll(dials) => {
            let hold = |it: &Dial| {
                Ok(dial::dial(it)?.map(|(connected, socket)| {
                    held.keep(socket);
                    connected
                }))
            };
            Response::AllDialed(dials.iter().map(hold).collect::<Result<_>>()?)
        }
        Request::Hold(dial) => {
            let result = dial::dial(&dial)?;
            Response::Dialed(result.map(|(connected, socket)| {
                held.keep(socket);
                Box::new(connected)
            }))
        }
        Request::Flood {
            to,
            count,
            deferred,
        } => Response::Flooded(flood::begin(to, count, deferred, held)?),
        Request::Begin { from, to } => {
            held.keep(flood::begin_from(from, to)?);
            Response::Done
        }
        Request::Crowd { watches } => {
            crowd::open(watches)?;
            Response::Done
        }
        Request::Sleepers { count } => {
            nested::sleep(count)?;
            Response::Done
        }
        Request::Reuse(to) => Response::Reused(dial::reuse(to)?),
        Request::Hang(address) => {
            held.keep(flood::hang(address)?);
            Response::Done
        }
        Request::Packets {
            from,
            to,
            count,
            flags,
        } => {
            flood::packets(from, to, count, flags)?;
            Response::Done
        }
        Request::Trick(trick) => tricks::play(trick)?,
        Request::AnswerUdp(answer) => {
            udp::answer(&answer)?;
            Response::Done
        }
        Request::SendTogether { all, patience_ms } => {
            let timeout = Duration::from_millis(patience_ms);
            Response::AllUdpAnswered(together(&all, |send| udp::send(send, timeout))?)
        }
        Request::SendUdp(send) => {
            Response::UdpAnswered(udp::send(&send, udp::WAIT_TIMEOUT)?.map(Box::new))
        }
        Request::Echo => Response::Count(held.echo()),
        Request::Again => Response::AllDialed(held.reread_names()),
    })
}

/// Connects, and closes the socket again; the errno if that fails.
fn seen(dial: &Dial) -> Result<Result<Connected, i32>> {
    Ok(dial::dial(dial)?.map(|(connected, _)| connected))
}
