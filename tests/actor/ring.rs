//! Connects by io_uring, with no more of it than that takes: one submission at a time.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use lab::tricks::Ring as By;
use socket2::{Domain, SockAddr, Socket};

const SETUP_SQPOLL: u32 = 1 << 1;
const FEAT_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: libc::c_uint = 1;
const ENTER_SQ_WAKEUP: libc::c_uint = 1 << 1;
const REGISTER_FILES: libc::c_uint = 2;
const OFF_SQES: libc::off_t = 0x1000_0000;
const OP_CONNECT: u8 = 16;
const OP_SOCKET: u8 = 45;
const OP_FIXED_FD_INSTALL: u8 = 54;
const FIXED_FILE: u8 = 1;

const ENTRIES: u32 = 1;
/// Enough for the rings of one entry, whatever the kernel puts between them.
const RING_SIZE: usize = 4096;

/// `struct io_sqring_offsets`, and with other names `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    fields: [u32; 6],
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: Offsets,
    cq: Offsets,
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    op_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    /// The index to create a file at, plus one.
    file_index: u32,
    rest: [u64; 2],
}

/// `struct io_uring_cqe`.
#[repr(C)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// An instance with room for one submission.
pub struct Ring {
    fd: OwnedFd,
    params: Params,
    rings: *mut u8,
    submissions: *mut Submission,
}

impl Ring {
    /// Sets one up; its creator's rights count for what it does.
    pub fn new(by: By) -> io::Result<Self> {
        let mut params = Params {
            flags: if by.polled { SETUP_SQPOLL } else { 0 },
            ..Params::default()
        };
        // SAFETY: the kernel reads and writes a struct of its own layout.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut params) };
        let fd = answer(fd)?;
        // SAFETY: the call has answered a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // One mapping holds both rings since Linux 5.4.
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let rings = map(fd.as_raw_fd(), 0)?.cast();
        let submissions = map(fd.as_raw_fd(), OFF_SQES)?.cast();
        Ok(Self {
            fd,
            params,
            rings,
            submissions,
        })
    }

    /// A counter that is shared with the kernel.
    fn shared(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel has said that an aligned word is there; the mapping lives as long as the ring.
        unsafe { AtomicU32::from_ptr(self.rings.add(offset as usize).cast()) }
    }

    /// Submits one and waits for its result.
    fn run(&self, submission: Submission) -> io::Result<i32> {
        let (sq, cq) = (&self.params.sq, &self.params.cq);
        // SAFETY: with one entry and nothing submitted the kernel reads neither the entry nor its index.
        unsafe {
            self.submissions.write(submission);
            // fields[2] of the submission ring is the index array.
            self.rings.add(sq.fields[2] as usize).cast::<u32>().write(0);
        }
        self.shared(sq.tail).fetch_add(1, Ordering::AcqRel);
        let head = self.shared(cq.head);
        while head.load(Ordering::Acquire) == self.shared(cq.tail).load(Ordering::Acquire) {
            // The thread of a polled instance may sleep; others ignore the flag.
            let flags = if self.params.flags & SETUP_SQPOLL == 0 {
                ENTER_GETEVENTS
            } else {
                ENTER_GETEVENTS | ENTER_SQ_WAKEUP
            };
            // SAFETY: the last two arguments are no signal mask and its size.
            let entered = unsafe {
                libc::syscall(
                    libc::SYS_io_uring_enter,
                    self.fd.as_raw_fd(),
                    1,
                    1,
                    flags,
                    ptr::null::<libc::sigset_t>(),
                    0,
                )
            };
            answer(entered)?;
        }
        let index = head.load(Ordering::Relaxed) & self.shared(cq.mask).load(Ordering::Relaxed);
        // SAFETY: the kernel has published this entry; fields[1] of the completion ring is where they are.
        let result = unsafe {
            let entries = self.rings.add(cq.fields[1] as usize).cast::<Completion>();
            entries.add(index as usize).read().result
        };
        head.fetch_add(1, Ordering::AcqRel);
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(result)
    }

    /// Creates a socket without a descriptor.
    fn create(&self, domain: Domain) -> io::Result<()> {
        // One slot, empty.
        let empty: RawFd = -1;
        // SAFETY: an array of one descriptor.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.fd.as_raw_fd(),
                REGISTER_FILES,
                &raw const empty,
                1,
            )
        };
        answer(registered)?;
        self.run(Submission {
            opcode: OP_SOCKET,
            fd: i32::from(domain),
            offset: libc::SOCK_STREAM as u64,
            file_index: 1,
            ..Submission::default()
        })
        .map(drop)
    }

    /// Gives that socket a descriptor.
    fn install(&self) -> io::Result<Socket> {
        let installed = self.run(Submission {
            opcode: OP_FIXED_FD_INSTALL,
            flags: FIXED_FILE,
            ..Submission::default()
        })?;
        // SAFETY: the submission has answered a new descriptor.
        Ok(unsafe { Socket::from_raw_fd(installed) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used by nothing else.
        unsafe {
            libc::munmap(self.rings.cast(), RING_SIZE);
            libc::munmap(self.submissions.cast(), RING_SIZE);
        }
    }
}

/// Connects a socket that has a descriptor.
pub fn connect(socket: &Socket, to: &SockAddr, by: By) -> io::Result<()> {
    if by.direct {
        // Its own ring has connected it.
        return Ok(());
    }
    let ring = Ring::new(by)?;
    ring.run(connecting(socket.as_raw_fd(), to, 0)).map(drop)
}

/// Creates and connects a socket that has no descriptor meanwhile, then gives it one.
pub fn direct(domain: Domain, to: &SockAddr, by: By) -> io::Result<Socket> {
    let ring = Ring::new(by)?;
    ring.create(domain)?;
    ring.run(connecting(0, to, FIXED_FILE))?;
    ring.install()
}

/// Whether the kernel allows and has all that is needed.
pub fn probe(by: By) -> io::Result<()> {
    let ring = Ring::new(by)?;
    if by.direct {
        ring.create(Domain::IPV4)?;
        ring.install()?;
    }
    Ok(())
}

fn connecting(fd: RawFd, to: &SockAddr, flags: u8) -> Submission {
    Submission {
        opcode: OP_CONNECT,
        flags,
        fd,
        // The address's length, by value.
        offset: u64::from(to.len()),
        address: to.as_ptr() as u64,
        ..Submission::default()
    }
}

fn map(fd: RawFd, offset: libc::off_t) -> io::Result<*mut libc::c_void> {
    // SAFETY: a new mapping, at an address the kernel chooses.
    let mapped = unsafe {
        libc::mmap(
            ptr::null_mut(),
            RING_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd,
            offset,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped)
}

fn answer(result: libc::c_long) -> io::Result<RawFd> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as RawFd)
    }
}
