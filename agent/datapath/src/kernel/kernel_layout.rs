//! Offsets of the kernel's struct members that the programs read, such as the creator of a socket, its IP options and its
//! accept queue, and the namespaces and cgroups of tasks, from its BTF (`/sys/kernel/btf/vmlinux`).
//!
//! Own parser: the offsets of a few members are needed, so the type section is walked and only where each type begins is
//! kept. A full BTF parser holds megabytes while it is in use. Format: Documentation/bpf/btf.rst.
//!
//! A member may be in a struct or union without a name, as those of task_struct are that the build has put in a random
//! order (CONFIG_RANDSTRUCT).

use std::{collections::HashMap, fs, io, path::Path, sync::OnceLock};

/// The kernel's description of its types.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Globals of the kernel programs, and the struct members whose offset they hold. Those that begin with `MASK` hold the
/// bit of a bit-field of one bit in its byte.
pub const MEMBERS: [(&str, &str, &str); 52] = [
    ("OFFSET_SOCK_SOCKET", "sock", "sk_socket"),
    ("OFFSET_SOCK_ERR", "sock", "sk_err"),
    ("OFFSET_SOCKET_FILE", "socket", "file"),
    ("OFFSET_FILE_CRED", "file", "f_cred"),
    ("OFFSET_CRED_FSUID", "cred", "fsuid"),
    ("OFFSET_CRED_FSGID", "cred", "fsgid"),
    ("OFFSET_INET_PINET6", "inet_sock", "pinet6"),
    ("OFFSET_PINFO_OPT", "ipv6_pinfo", "opt"),
    ("OFFSET_TXOPT_SRCRT", "ipv6_txoptions", "srcrt"),
    ("OFFSET_INET_OPT", "inet_sock", "inet_opt"),
    ("OFFSET_RCU_OPT", "ip_options_rcu", "opt"),
    ("OFFSET_OPT_SRR", "ip_options", "srr"),
    ("OFFSET_INET_UC_INDEX", "inet_sock", "uc_index"),
    ("OFFSET_PINFO_UCAST_OIF", "ipv6_pinfo", "ucast_oif"),
    ("OFFSET_PINFO_PKTINFO", "ipv6_pinfo", "sticky_pktinfo"),
    ("OFFSET_PKTINFO_IFINDEX", "in6_pktinfo", "ipi6_ifindex"),
    ("OFFSET_SOCK_ADDR_T_CTX", "bpf_sock_addr_kern", "t_ctx"),
    ("OFFSET_IPCM_ADDR", "ipcm_cookie", "addr"),
    ("OFFSET_IPCM_OIF", "ipcm_cookie", "oif"),
    ("OFFSET_FLOWI6_SADDR", "flowi6", "saddr"),
    ("OFFSET_FLOWI_OIF", "flowi_common", "flowic_oif"),
    ("OFFSET_SOCK_BACKLOG", "sock", "sk_backlog"),
    ("OFFSET_ICSK_ULP", "inet_connection_sock", "icsk_ulp_ops"),
    (
        "OFFSET_ICSK_ACCEPT_QUEUE",
        "inet_connection_sock",
        "icsk_accept_queue",
    ),
    (
        "OFFSET_QUEUE_HEAD",
        "request_sock_queue",
        "rskq_accept_head",
    ),
    ("OFFSET_REQUEST_SYNACK", "tcp_request_sock", "snt_synack"),
    ("OFFSET_SOCK_ACK_BACKLOG", "sock", "sk_ack_backlog"),
    ("OFFSET_SOCK_MAX_ACK_BACKLOG", "sock", "sk_max_ack_backlog"),
    (
        "OFFSET_ICSK_BIND_HASH",
        "inet_connection_sock",
        "icsk_bind_hash",
    ),
    ("OFFSET_BUCKET_FASTREUSE", "inet_bind_bucket", "fastreuse"),
    ("OFFSET_TCP_WRITE_SEQ", "tcp_sock", "write_seq"),
    ("OFFSET_TCP_COPIED_SEQ", "tcp_sock", "copied_seq"),
    ("OFFSET_TASK_PID", "task_struct", "pid"),
    ("OFFSET_TASK_TGID", "task_struct", "tgid"),
    ("OFFSET_TASK_LEADER", "task_struct", "group_leader"),
    ("OFFSET_TASK_START", "task_struct", "start_time"),
    ("OFFSET_TASK_THREAD_PID", "task_struct", "thread_pid"),
    ("OFFSET_TASK_NSPROXY", "task_struct", "nsproxy"),
    ("OFFSET_TASK_CGROUPS", "task_struct", "cgroups"),
    ("OFFSET_PID_LEVEL", "pid", "level"),
    ("OFFSET_PID_NUMBERS", "pid", "numbers"),
    ("OFFSET_NSPROXY_NET", "nsproxy", "net_ns"),
    ("OFFSET_NET_NS", "net", "ns"),
    ("OFFSET_NS_INUM", "ns_common", "inum"),
    ("OFFSET_CSS_SET_CGROUP", "css_set", "dfl_cgrp"),
    ("OFFSET_CGROUP_SELF", "cgroup", "self"),
    ("OFFSET_CGROUP_KN", "cgroup", "kn"),
    ("OFFSET_CSS_PARENT", "cgroup_subsys_state", "parent"),
    ("OFFSET_CSS_CGROUP", "cgroup_subsys_state", "cgroup"),
    ("OFFSET_KERNFS_ID", "kernfs_node", "id"),
    // The first member of struct sock.
    ("OFFSET_SOCK_V6ONLY", "sock_common", "skc_ipv6only"),
    ("MASK_SOCK_V6ONLY", "sock_common", "skc_ipv6only"),
];

/// Byte offsets and masks for [`MEMBERS`], by global.
pub type Offsets = Vec<(&'static str, u32)>;

/// Why the offsets are unknown.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("read {VMLINUX_BTF}: {0}; the kernel must be built with CONFIG_DEBUG_INFO_BTF")]
    Read(#[from] io::Error),
    /// The file is not BTF as documented.
    #[error("{VMLINUX_BTF} is not BTF that this sidetrack can read (at byte {0})")]
    Format(usize),
    /// The kernel has no such member.
    #[error("the kernel's struct {0} has no member {1}")]
    Missing(&'static str, &'static str),
}

/// The offsets of the running kernel. They are read once: that takes milliseconds.
pub fn offsets() -> Result<Offsets, LayoutError> {
    static KNOWN: OnceLock<Offsets> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let read = offsets_in(&fs::read(Path::new(VMLINUX_BTF))?)?;
    Ok(KNOWN.get_or_init(|| read).clone())
}

fn offsets_in(btf: &[u8]) -> Result<Offsets, LayoutError> {
    let wanted: HashMap<&str, Vec<usize>> =
        MEMBERS
            .iter()
            .enumerate()
            .fold(HashMap::new(), |mut wanted, (index, (_, name, _))| {
                wanted.entry(*name).or_insert_with(Vec::new).push(index);
                wanted
            });
    let mut found = [None; MEMBERS.len()];
    walk(btf, |kind, name, members| {
        if kind != KIND_STRUCT {
            return;
        }
        for index in wanted.get(name).into_iter().flatten() {
            if let Some(bits) = members(MEMBERS[*index].2) {
                found[*index] = Some(if MEMBERS[*index].0.starts_with("MASK") {
                    1 << (bits % 8)
                } else {
                    bits / 8
                });
            }
        }
    })?;
    MEMBERS
        .iter()
        .zip(found)
        .map(|((global, name, member), offset)| {
            offset
                .map(|offset| (*global, offset))
                .ok_or(LayoutError::Missing(name, member))
        })
        .collect()
}

/// Whether the running kernel has a function, as far as its BTF says.
pub fn has_function(wanted: &str) -> Result<bool, LayoutError> {
    let mut found = false;
    walk(&fs::read(Path::new(VMLINUX_BTF))?, |kind, name, _| {
        found |= kind == KIND_FUNC && name == wanted;
    })?;
    Ok(found)
}

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNC: u32 = 12;

/// How deep members without a name are followed: kernels whose structs are randomized have one level, and some unions.
const MAX_DEPTH: usize = 4;

/// Calls `visit` with every struct's and function's kind and name, and with a function that finds a
/// struct's member's bit offset.
fn walk(
    btf: &[u8],
    mut visit: impl FnMut(u32, &str, &dyn Fn(&str) -> Option<u32>),
) -> Result<(), LayoutError> {
    let btf = Btf::new(btf)?;
    for id in 1..btf.types.len() {
        let (name, kind, _) = btf.type_at(btf.types[id])?;
        if matches!(kind, KIND_STRUCT | KIND_FUNC) {
            let member = |wanted: &str| btf.member(id, wanted, MAX_DEPTH);
            visit(kind, btf.name_at(name), &member);
        }
    }
    Ok(())
}

/// The description of a kernel's types.
struct Btf<'a> {
    bytes: &'a [u8],
    /// Where each type begins, by its id. 0 is `void`.
    types: Vec<usize>,
    strings: usize,
}

impl<'a> Btf<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let mut btf = Self {
            bytes,
            types: vec![0],
            strings: 0,
        };
        if btf.word(0)? & 0xffff != 0xeb9f {
            return Err(LayoutError::Format(0));
        }
        let header = btf.word(4)? as usize;
        let mut at = header + btf.word(8)? as usize;
        let end = at + btf.word(12)? as usize;
        btf.strings = header + btf.word(16)? as usize;
        while at < end {
            btf.types.push(at);
            let (_, kind, count) = btf.type_at(at)?;
            at += 12;
            at += match kind {
                // INT, VAR, DECL_TAG: one word
                1 | 14 | 17 => 4,
                // ARRAY: three words
                3 => 12,
                // STRUCT, UNION, DATASEC, ENUM64: three words each
                4 | 5 | 15 | 19 => 12 * count,
                // ENUM, FUNC_PROTO: two words each
                6 | 13 => 8 * count,
                // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
                2 | 7..=12 | 16 | 18 => 0,
                _ => return Err(LayoutError::Format(at)),
            };
        }
        Ok(btf)
    }

    /// Name, kind, and number of members of the type at an offset.
    fn type_at(&self, at: usize) -> Result<(u32, u32, usize), LayoutError> {
        let (name, info) = (self.word(at)?, self.word(at + 4)?);
        Ok((name, info >> 24 & 0x1f, (info & 0xffff) as usize))
    }

    /// The bit offset of a struct's or union's member, which may be in one without a name.
    fn member(&self, id: usize, wanted: &str, depth: usize) -> Option<u32> {
        let at = *self.types.get(id)?;
        let (_, kind, count) = self.type_at(at).ok()?;
        if !matches!(kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        // With kind_flag the upper byte of an offset is a bit-field's width.
        let has_bit_fields = self.word(at + 4).ok()? >> 31 != 0;
        let mask = if has_bit_fields {
            0x00ff_ffff
        } else {
            u32::MAX
        };
        (0..count).find_map(|index| {
            let entry = at + 12 + 12 * index;
            let [name, member_type, bits] =
                [0, 4, 8].map(|offset| self.word(entry + offset).unwrap_or_default());
            let bits = bits & mask;
            match self.name_at(name) {
                "" => {
                    let depth = depth.checked_sub(1)?;
                    let within = self.member(member_type as usize, wanted, depth)?;
                    Some(bits + within)
                }
                name => (name == wanted).then_some(bits),
            }
        })
    }

    fn name_at(&self, offset: u32) -> &'a str {
        let bytes = self.bytes.get(self.strings + offset as usize..);
        let bytes = bytes.unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&bytes[..end]).unwrap_or_default()
    }

    fn word(&self, at: usize) -> Result<u32, LayoutError> {
        let bytes = self.bytes.get(at..at + 4);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(LayoutError::Format(at))
    }
}

#[cfg(test)]
mod tests;
