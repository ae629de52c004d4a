//! Gives the elements of texts the name by which `bpftool` recognizes them.
//!
//! bpftool prints an array as text if BTF calls its elements `char`. No type of Rust has that name there, so texts in
//! maps are arrays of `i8` (`sidetrack_common::btf::TextByte`), which nothing else is, and `i8` is renamed.

use object::{
    LittleEndian,
    elf::FileHeader64,
    read::elf::{FileHeader as _, SectionHeader as _},
};

/// Offsets in `struct bpf_btf_header` (include/uapi/linux/btf.h).
const HEADER_LEN: usize = 4;
const TYPE_OFFSET: usize = 8;
const TYPE_LEN: usize = 12;
const STRING_OFFSET: usize = 16;
const STRING_LEN: usize = 20;

/// Offsets in `Elf64_Shdr`.
const SECTION_OFFSET: usize = 24;
const SECTION_SIZE: usize = 32;

/// Renames the type `i8` of an object to `char`.
pub fn name_text(object: &mut Vec<u8>) -> Result<(), String> {
    let (header, range) = btf_section(object)?;
    let mut btf = object
        .get(range)
        .ok_or("the section .BTF is cut short")?
        .to_vec();
    rename(&mut btf, b"i8", b"char")?;
    // A longer section has no room where it was. In an object file sections may be anywhere.
    object.resize(object.len().next_multiple_of(8), 0);
    let (offset, size) = (object.len() as u64, btf.len() as u64);
    object.extend(btf);
    object[header + SECTION_OFFSET..][..8].copy_from_slice(&offset.to_le_bytes());
    object[header + SECTION_SIZE..][..8].copy_from_slice(&size.to_le_bytes());
    Ok(())
}

/// Where the header of the section is, and where its contents are.
fn btf_section(object: &[u8]) -> Result<(usize, std::ops::Range<usize>), String> {
    let endian = LittleEndian;
    let text = |error: object::Error| error.to_string();
    let file = FileHeader64::<LittleEndian>::parse(object).map_err(text)?;
    let sections = file.sections(endian, object).map_err(text)?;
    let (index, section) = sections
        .section_by_name(endian, b".BTF")
        .ok_or("there is no section .BTF")?;
    let header = file.e_shoff(endian) as usize + index.0 * usize::from(file.e_shentsize(endian));
    let start = section.sh_offset(endian) as usize;
    Ok((header, start..start + section.sh_size(endian) as usize))
}

/// Gives the type with a name another one, which the strings need not have.
fn rename(btf: &mut Vec<u8>, old: &[u8], new: &[u8]) -> Result<(), String> {
    let header_len = number(btf, HEADER_LEN)?;
    let types = header_len + number(btf, TYPE_OFFSET)?;
    let types_end = types + number(btf, TYPE_LEN)?;
    let strings = header_len + number(btf, STRING_OFFSET)?;
    let strings_len = number(btf, STRING_LEN)?;
    if strings + strings_len != btf.len() {
        return Err("the strings are not at the end of .BTF".into());
    }
    let mut renamed = 0;
    let mut at = types;
    while at < types_end {
        let name = strings + number(btf, at)?;
        let info = number(btf, at + 4)?;
        if btf[name..].starts_with(&[old, b"\0"].concat()) {
            btf[at..at + 4].copy_from_slice(&(strings_len as u32).to_le_bytes());
            renamed += 1;
        }
        at += type_len(info)?;
    }
    if renamed != 1 {
        let old = String::from_utf8_lossy(old);
        return Err(format!("{renamed} types are called {old}, not one"));
    }
    btf.extend(new);
    btf.push(0);
    let len = btf.len() - strings;
    btf[STRING_LEN..STRING_LEN + 4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(())
}

/// Bytes of a type with this `info` (Documentation/bpf/btf.rst).
fn type_len(info: usize) -> Result<usize, String> {
    let members = info & 0xffff;
    let kind = info >> 24 & 0x1f;
    let more = match kind {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * members,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * members,
        _ => return Err(format!("BTF has a type of an unknown kind: {kind}")),
    };
    Ok(12 + more)
}

/// The number at an offset.
fn number(btf: &[u8], at: usize) -> Result<usize, String> {
    let bytes = btf.get(at..at + 4).ok_or(".BTF is cut short")?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
}
