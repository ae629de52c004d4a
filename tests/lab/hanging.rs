//! A file system that never answers, as an NFS whose server is away, or a FUSE that an app serves.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// The kernel's first request, FUSE_INIT; it is the only one that is answered.
const INIT: u32 = 26;
/// The head of a request, `fuse_in_header` of linux/fuse.h, and of an answer, `fuse_out_header`.
const REQUEST_HEAD: usize = 40;
const ANSWER_HEAD: usize = 16;
/// `fuse_init_out`.
const INIT_OUT: usize = 64;

/// The file system; what waits for it gets an error when it is dropped.
#[derive(Debug)]
pub struct HangingFs {
    path: PathBuf,
    done: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl HangingFs {
    /// Mounts it over a directory.
    pub fn mount(path: &Path) -> Result<Self> {
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/fuse")
            .context("open /dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("hanging"), path, Some("fuse"), flags, Some(&*options))
            .with_context(|| format!("mount a file system on {}", path.display()))?;
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let server = thread::spawn(move || serve(device, &until));
        Ok(Self {
            path: path.to_owned(),
            done,
            server: Some(server),
        })
    }
}

fn serve(mut device: File, done: &AtomicBool) {
    let mut request = vec![0; 256 << 10];
    while !done.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::from(20_u8));
        let Ok(length @ REQUEST_HEAD..) = device.read(&mut request) else {
            continue;
        };
        if request[4..8] != INIT.to_ne_bytes() || length < REQUEST_HEAD + 8 {
            continue;
        }
        let mut answer = vec![0; ANSWER_HEAD + INIT_OUT];
        answer[..4].copy_from_slice(&((ANSWER_HEAD + INIT_OUT) as u32).to_ne_bytes());
        answer[8..16].copy_from_slice(&request[8..16]);
        // The version is the kernel's own.
        answer[ANSWER_HEAD..ANSWER_HEAD + 8].copy_from_slice(&request[40..48]);
        let _ = device.write_all(&answer);
    }
}

impl Drop for HangingFs {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        self.done.store(true, Ordering::Relaxed);
        // Without its server everything that waits for it fails.
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
