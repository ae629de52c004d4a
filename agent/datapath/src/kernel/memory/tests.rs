use aya_obj::generated::{BPF_F_NO_PREALLOC, bpf_map_type};

use super::{field, fixed};

#[test]
fn fdinfo_and_status_have_numbers() {
    let fdinfo = "pos:\t0\nmap_type:\t1\nmemlock:\t1050784\nmap_id:\t7\n";
    assert_eq!(field(fdinfo, "memlock:"), Some(1_050_784));
    assert_eq!(field("VmRSS:\t   17204 kB\n", "VmRSS:"), Some(17_204));
    assert_eq!(field(fdinfo, "VmRSS:"), None);
    assert_eq!(field("memlock:\tmuch\n", "memlock:"), None);
}

#[test]
fn buckets_are_there_without_rows() {
    let hash = bpf_map_type::BPF_MAP_TYPE_HASH;
    let buckets = Some(8_192 * 16 + 1_024);
    for (kind, flags, expected) in [
        (hash, BPF_F_NO_PREALLOC, buckets),
        // All of its rows are there from the start.
        (hash, 0, None),
        (bpf_map_type::BPF_MAP_TYPE_SOCKHASH, 0, buckets),
        (bpf_map_type::BPF_MAP_TYPE_ARRAY, 0, None),
        (
            bpf_map_type::BPF_MAP_TYPE_LPM_TRIE,
            BPF_F_NO_PREALLOC,
            Some(0),
        ),
        // The storage is the sockets'.
        (
            bpf_map_type::BPF_MAP_TYPE_SK_STORAGE,
            BPF_F_NO_PREALLOC,
            None,
        ),
    ] {
        assert_eq!(
            fixed(kind as u32, flags, 5_000),
            expected,
            "{}",
            kind as u32
        );
    }
}
