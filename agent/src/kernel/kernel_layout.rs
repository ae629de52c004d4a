//! Where the running kernel stores the creator of a socket, its IP options, and the namespaces and cgroups of tasks,
//! read from its BTF (`/sys/kernel/btf/vmlinux`).
//!
//! Own parser: the offsets of a few members are needed, so the type section is walked once and nothing is
//! kept. A full BTF parser would hold megabytes. Format: Documentation/bpf/btf.rst.

use std::{collections::HashMap, fs, io, path::Path};

/// The kernel's description of its types.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Globals of the kernel programs, and the struct members whose offset they hold. Those that begin with `MASK` hold the
/// bit of a bit-field of one bit in its byte.
pub const MEMBERS: [(&str, &str, &str); 35] = [
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
    ("OFFSET_SOCK_BACKLOG", "sock", "sk_backlog"),
    ("OFFSET_ICSK_ULP", "inet_connection_sock", "icsk_ulp_ops"),
    ("OFFSET_TCP_WRITE_SEQ", "tcp_sock", "write_seq"),
    ("OFFSET_TCP_COPIED_SEQ", "tcp_sock", "copied_seq"),
    ("OFFSET_TASK_PID", "task_struct", "pid"),
    ("OFFSET_TASK_TGID", "task_struct", "tgid"),
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

/// Reads the offsets of the running kernel.
pub fn offsets() -> Result<Offsets, LayoutError> {
    offsets_in(&fs::read(Path::new(VMLINUX_BTF))?)
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
const KIND_FUNC: u32 = 12;

/// Calls `visit` with every struct's and function's kind and name, and with a function that finds a
/// struct's member's bit offset.
fn walk(
    btf: &[u8],
    mut visit: impl FnMut(u32, &str, &dyn Fn(&str) -> Option<u32>),
) -> Result<(), LayoutError> {
    let word = |at: usize| {
        btf.get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_ne_bytes)
            .ok_or(LayoutError::Format(at))
    };
    if word(0)? & 0xffff != 0xeb9f {
        return Err(LayoutError::Format(0));
    }
    let header = word(4)? as usize;
    let types = header + word(8)? as usize;
    let end = types + word(12)? as usize;
    let strings = header + word(16)? as usize;
    let name_at = |offset: u32| {
        let bytes = btf.get(strings + offset as usize..).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&bytes[..end]).unwrap_or_default()
    };
    let mut at = types;
    while at < end {
        let (name, info) = (word(at)?, word(at + 4)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let body = at + 12;
        let size = match kind {
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
        if matches!(kind, KIND_STRUCT | KIND_FUNC) {
            // With kind_flag the upper byte of an offset is a bit-field's width.
            let mask = if info >> 31 == 0 {
                u32::MAX
            } else {
                0x00ff_ffff
            };
            visit(kind, name_at(name), &|member| {
                (0..count).find_map(|index| {
                    let entry = body + 12 * index;
                    (name_at(word(entry).ok()?) == member)
                        .then(|| word(entry + 8).ok().map(|bits| bits & mask))?
                })
            });
        }
        at = body + size;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{KIND_STRUCT, LayoutError, MEMBERS, offsets, offsets_in};

    #[test]
    fn the_running_kernel_has_them_all() {
        let offsets = offsets().expect("BTF of the running kernel");
        assert_eq!(offsets.len(), MEMBERS.len());
        // struct sock starts with its common part, struct cred with a reference count.
        let is_first = |global: &str| matches!(global, "OFFSET_CGROUP_SELF" | "OFFSET_CSS_CGROUP");
        let mut later = offsets.iter().filter(|(global, _)| !is_first(global));
        assert!(later.all(|(_, offset)| *offset > 0));
        assert_ne!(offsets[3].1, offsets[4].1);
    }

    /// BTF of structs: name and members, each with its offset word. With `bit_fields` the upper byte of
    /// that word is a width.
    fn btf(structs: &[(&str, &[(&str, u32)])], bit_fields: bool) -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend(text.as_bytes());
            strings.push(0);
            at
        };
        // A pointer and an array come first: the walk must skip them.
        let mut types = vec![0, 2 << 24, 0, 0, 3 << 24, 0, 1, 1, 8];
        for (struct_name, members) in structs {
            let info = u32::from(bit_fields) << 31 | KIND_STRUCT << 24 | members.len() as u32;
            types.extend([name(struct_name), info, 64]);
            for (member, offset) in *members {
                types.extend([name(member), 1, *offset]);
            }
        }
        let types_len = 4 * types.len() as u32;
        let header = [
            0x0001_eb9f,
            24,
            0,
            types_len,
            types_len,
            strings.len() as u32,
        ];
        let words = header.into_iter().chain(types);
        words.flat_map(u32::to_ne_bytes).chain(strings).collect()
    }

    const STRUCTS: [(&str, &[(&str, u32)]); 21] = [
        (
            "sock",
            &[
                ("other", 0),
                ("sk_backlog", 8 * 8),
                ("sk_socket", 8 * 24),
                ("sk_err", 8 * 40),
            ],
        ),
        ("socket", &[("file", 8 * 16)]),
        ("file", &[("f_cred", 8 * 144)]),
        ("cred", &[("fsuid", 8 * 28), ("fsgid", 8 * 32)]),
        ("inet_sock", &[("pinet6", 8 * 760), ("inet_opt", 8 * 784)]),
        ("ipv6_pinfo", &[("opt", 8 * 96)]),
        ("ipv6_txoptions", &[("srcrt", 8 * 32)]),
        ("ip_options_rcu", &[("rcu", 0), ("opt", 8 * 16)]),
        ("ip_options", &[("optlen", 8 * 8), ("srr", 8 * 9)]),
        ("inet_connection_sock", &[("icsk_ulp_ops", 8 * 40)]),
        ("tcp_sock", &[("copied_seq", 8 * 48), ("write_seq", 8 * 52)]),
        (
            "task_struct",
            &[
                ("pid", 8 * 100),
                ("tgid", 8 * 104),
                ("start_time", 8 * 112),
                ("thread_pid", 8 * 120),
                ("nsproxy", 8 * 128),
                ("cgroups", 8 * 136),
            ],
        ),
        ("pid", &[("level", 8 * 4), ("numbers", 8 * 96)]),
        ("nsproxy", &[("net_ns", 8 * 40)]),
        ("net", &[("ns", 8 * 120)]),
        ("ns_common", &[("inum", 8 * 16)]),
        ("css_set", &[("dfl_cgrp", 8 * 112)]),
        ("cgroup", &[("self", 0), ("kn", 8 * 240)]),
        ("cgroup_subsys_state", &[("cgroup", 0), ("parent", 8 * 208)]),
        ("kernfs_node", &[("id", 8 * 80)]),
        ("sock_common", &[("skc_ipv6only", 8 * 19 + 5)]),
    ];

    #[test]
    fn offsets_are_bytes_by_global() {
        let expected = [
            ("OFFSET_SOCK_SOCKET", 24),
            ("OFFSET_SOCK_ERR", 40),
            ("OFFSET_SOCKET_FILE", 16),
            ("OFFSET_FILE_CRED", 144),
            ("OFFSET_CRED_FSUID", 28),
            ("OFFSET_CRED_FSGID", 32),
            ("OFFSET_INET_PINET6", 760),
            ("OFFSET_PINFO_OPT", 96),
            ("OFFSET_TXOPT_SRCRT", 32),
            ("OFFSET_INET_OPT", 784),
            ("OFFSET_RCU_OPT", 16),
            ("OFFSET_OPT_SRR", 9),
            ("OFFSET_SOCK_BACKLOG", 8),
            ("OFFSET_ICSK_ULP", 40),
            ("OFFSET_TCP_WRITE_SEQ", 52),
            ("OFFSET_TCP_COPIED_SEQ", 48),
            ("OFFSET_TASK_PID", 100),
            ("OFFSET_TASK_TGID", 104),
            ("OFFSET_TASK_START", 112),
            ("OFFSET_TASK_THREAD_PID", 120),
            ("OFFSET_TASK_NSPROXY", 128),
            ("OFFSET_TASK_CGROUPS", 136),
            ("OFFSET_PID_LEVEL", 4),
            ("OFFSET_PID_NUMBERS", 96),
            ("OFFSET_NSPROXY_NET", 40),
            ("OFFSET_NET_NS", 120),
            ("OFFSET_NS_INUM", 16),
            ("OFFSET_CSS_SET_CGROUP", 112),
            ("OFFSET_CGROUP_SELF", 0),
            ("OFFSET_CGROUP_KN", 240),
            ("OFFSET_CSS_PARENT", 208),
            ("OFFSET_CSS_CGROUP", 0),
            ("OFFSET_KERNFS_ID", 80),
            ("OFFSET_SOCK_V6ONLY", 19),
            ("MASK_SOCK_V6ONLY", 1 << 5),
        ];
        assert_eq!(offsets_in(&btf(&STRUCTS, false)).unwrap(), expected);
    }

    #[test]
    fn widths_of_bit_fields_are_not_part_of_the_offset() {
        let mut structs = STRUCTS;
        structs[1] = ("socket", &[("file", (3 << 24) | (8 * 16))]);
        let offsets = offsets_in(&btf(&structs, true)).unwrap();
        assert_eq!(offsets[2], ("OFFSET_SOCKET_FILE", 16));
    }

    #[test]
    fn missing_members_are_named() {
        let mut structs = STRUCTS;
        structs[3] = ("cred", &[("fsuid", 8 * 28)]);
        let error = offsets_in(&btf(&structs, false)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel's struct cred has no member fsgid"
        );
    }

    #[test]
    fn malformed_btf_is_an_error() {
        for malformed in [
            &b""[..],
            b"\x9f\xeb",
            &[0; 64],
            &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0],
        ] {
            assert!(matches!(
                offsets_in(malformed),
                Err(LayoutError::Format(_) | LayoutError::Missing(..))
            ));
        }
    }
}
