use super::{KIND_STRUCT, LayoutError, MEMBERS, offsets, offsets_in};

#[test]
fn the_running_kernel_has_them_all() {
    let offsets = offsets().expect("BTF of the running kernel");
    assert_eq!(offsets.len(), MEMBERS.len());
    // struct sock starts with its common part, struct cred with a reference count.
    let first = [
        "OFFSET_CGROUP_SELF",
        "OFFSET_CSS_CGROUP",
        "OFFSET_FLOWI_OIF",
    ];
    let is_first = |global: &str| first.contains(&global);
    let mut later = offsets.iter().filter(|(global, _)| !is_first(global));
    assert!(later.all(|(_, offset)| *offset > 0));
    assert_ne!(offsets[3].1, offsets[4].1);
}

/// The first struct of [`btf`]: a pointer and an array are before it.
const FIRST_STRUCT: u32 = 3;

/// BTF of structs: name and members, each with its offset word. With `bit_fields` the upper byte of
/// that word is a width. A member without a name is the last struct.
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
        let last = FIRST_STRUCT + structs.len() as u32 - 1;
        for (member, offset) in *members {
            let its_type = if member.is_empty() { last } else { 1 };
            types.extend([name(member), its_type, *offset]);
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

const STRUCTS: [(&str, &[(&str, u32)]); 29] = [
    (
        "sock",
        &[
            ("other", 0),
            ("sk_backlog", 8 * 8),
            ("sk_ack_backlog", 8 * 12),
            ("sk_max_ack_backlog", 8 * 16),
            ("sk_socket", 8 * 24),
            ("sk_err", 8 * 40),
        ],
    ),
    ("socket", &[("file", 8 * 16)]),
    ("file", &[("f_cred", 8 * 144)]),
    ("cred", &[("fsuid", 8 * 28), ("fsgid", 8 * 32)]),
    (
        "inet_sock",
        &[
            ("pinet6", 8 * 760),
            ("inet_opt", 8 * 784),
            ("uc_index", 8 * 804),
        ],
    ),
    (
        "ipv6_pinfo",
        &[
            ("sticky_pktinfo", 8 * 16),
            ("ucast_oif", 8 * 60),
            ("opt", 8 * 96),
        ],
    ),
    ("in6_pktinfo", &[("ipi6_ifindex", 8 * 16)]),
    ("bpf_sock_addr_kern", &[("t_ctx", 8 * 24)]),
    ("ipcm_cookie", &[("addr", 8 * 40), ("oif", 8 * 44)]),
    ("flowi6", &[("saddr", 8 * 72)]),
    ("flowi_common", &[("flowic_oif", 0)]),
    ("ipv6_txoptions", &[("srcrt", 8 * 32)]),
    ("ip_options_rcu", &[("rcu", 0), ("opt", 8 * 16)]),
    ("ip_options", &[("optlen", 8 * 8), ("srr", 8 * 9)]),
    (
        "inet_connection_sock",
        &[
            ("icsk_bind_hash", 8 * 32),
            ("icsk_accept_queue", 8 * 24),
            ("icsk_ulp_ops", 8 * 40),
        ],
    ),
    ("inet_bind_bucket", &[("fastreuse", 8 * 14)]),
    ("request_sock_queue", &[("rskq_accept_head", 8 * 16)]),
    ("tcp_request_sock", &[("snt_synack", 8 * 264)]),
    ("tcp_sock", &[("copied_seq", 8 * 48), ("write_seq", 8 * 52)]),
    (
        "task_struct",
        &[
            ("pid", 8 * 100),
            ("tgid", 8 * 104),
            ("start_time", 8 * 112),
            ("group_leader", 8 * 144),
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
        ("OFFSET_INET_UC_INDEX", 804),
        ("OFFSET_PINFO_UCAST_OIF", 60),
        ("OFFSET_PINFO_PKTINFO", 16),
        ("OFFSET_PKTINFO_IFINDEX", 16),
        ("OFFSET_SOCK_ADDR_T_CTX", 24),
        ("OFFSET_IPCM_ADDR", 40),
        ("OFFSET_IPCM_OIF", 44),
        ("OFFSET_FLOWI6_SADDR", 72),
        ("OFFSET_FLOWI_OIF", 0),
        ("OFFSET_SOCK_BACKLOG", 8),
        ("OFFSET_ICSK_ULP", 40),
        ("OFFSET_ICSK_ACCEPT_QUEUE", 24),
        ("OFFSET_QUEUE_HEAD", 16),
        ("OFFSET_REQUEST_SYNACK", 264),
        ("OFFSET_SOCK_ACK_BACKLOG", 12),
        ("OFFSET_SOCK_MAX_ACK_BACKLOG", 16),
        ("OFFSET_ICSK_BIND_HASH", 32),
        ("OFFSET_BUCKET_FASTREUSE", 14),
        ("OFFSET_TCP_WRITE_SEQ", 52),
        ("OFFSET_TCP_COPIED_SEQ", 48),
        ("OFFSET_TASK_PID", 100),
        ("OFFSET_TASK_TGID", 104),
        ("OFFSET_TASK_LEADER", 144),
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
fn members_of_a_struct_without_a_name_are_found() {
    let mut structs = STRUCTS.to_vec();
    structs[3] = ("cred", &[("usage", 0), ("", 8 * 8)]);
    structs.push(("", &[("fsgid", 8 * 4), ("fsuid", 8 * 20)]));
    let offsets = offsets_in(&btf(&structs, false)).unwrap();
    assert_eq!(offsets[4], ("OFFSET_CRED_FSUID", 28));
    assert_eq!(offsets[5], ("OFFSET_CRED_FSGID", 12));
    // One that has itself without a name ends as well.
    structs.pop();
    structs.push(("", &[("", 0)]));
    let error = offsets_in(&btf(&structs, false)).unwrap_err();
    assert!(matches!(error, LayoutError::Missing("cred", "fsuid")));
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
