//! Where the running kernel keeps a socket's creator, from its own BTF (`/sys/kernel/btf/vmlinux`).
//!
//! Only member offsets of a few structs are wanted, so the type section is walked once and nothing
//! is kept. Format: Documentation/bpf/btf.rst.

use std::{collections::HashMap, fs, io, path::Path};

/// The kernel's description of its types.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The globals of the kernel programs and the struct members they stand for.
pub const MEMBERS: [(&str, &str, &str); 5] = [
    ("OFFSET_SOCK_SOCKET", "sock", "sk_socket"),
    ("OFFSET_SOCKET_FILE", "socket", "file"),
    ("OFFSET_FILE_CRED", "file", "f_cred"),
    ("OFFSET_CRED_FSUID", "cred", "fsuid"),
    ("OFFSET_CRED_FSGID", "cred", "fsgid"),
];

/// Byte offsets for [`MEMBERS`], by global.
pub type Offsets = Vec<(&'static str, u32)>;

/// Why the offsets could not be had.
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

/// Looks the offsets up in the running kernel.
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
    walk_structs(btf, |name, members| {
        for index in wanted.get(name).into_iter().flatten() {
            if let Some(bits) = members(MEMBERS[*index].2) {
                found[*index] = Some(bits / 8);
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

const KIND_STRUCT: u32 = 4;

/// Calls `visit` with every struct's name and a function that finds a member's bit offset.
fn walk_structs(
    btf: &[u8],
    mut visit: impl FnMut(&str, &dyn Fn(&str) -> Option<u32>),
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
        if kind == KIND_STRUCT {
            // With kind_flag the upper byte of an offset is a bit-field's width.
            let mask = if info >> 31 == 0 {
                u32::MAX
            } else {
                0x00ff_ffff
            };
            visit(name_at(name), &|member| {
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
    use super::{LayoutError, MEMBERS, offsets, offsets_in};

    #[test]
    fn the_running_kernel_has_them_all() {
        let offsets = offsets().expect("BTF of the running kernel");
        assert_eq!(offsets.len(), MEMBERS.len());
        // struct sock starts with its common part, struct cred with a reference count.
        assert!(offsets.iter().all(|(_, offset)| *offset > 0));
        assert_ne!(offsets[3].1, offsets[4].1);
    }

    #[test]
    fn rubbish_is_an_error() {
        for rubbish in [
            &b""[..],
            b"\x9f\xeb",
            &[0; 64],
            &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0],
        ] {
            assert!(matches!(
                offsets_in(rubbish),
                Err(LayoutError::Format(_) | LayoutError::Missing(..))
            ));
        }
    }
}
