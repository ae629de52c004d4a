//! The sk_lookup program. Every pod's network namespace gets an instance of its own: the program cannot
//! find out which namespace it runs in, so a read-only global holds the cookie.
//!
//! The object is parsed and relocated once; an instance is those instructions with the descriptor
//! of its own `.rodata` map filled in (about 0.1 ms, 4 KiB of kernel memory).

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, anyhow};
use aya::Ebpf;
use aya_obj::{
    EbpfSectionKind, Object,
    generated::{BPF_F_RDONLY_PROG, bpf_attach_type, bpf_insn, bpf_map_type, bpf_prog_type},
};
use sidetrack_common::ids::NetnsCookie;

use super::{
    hooks::SK_LOOKUP_PROGRAM, kernel_log::LogLevel, maps::PINNED, objects, pins::Pins, probe, sys,
};

/// Placeholder for the `.rodata` map in the template's instructions; no descriptor has this number.
const RODATA: i32 = i32::MAX;

/// Marks the global for the cookie in `.rodata`; the value occurs nowhere else there.
const MARK: u64 = 0x51de_74ac_c00c_1e5a;

/// What all instances have in common.
#[derive(Debug)]
pub struct InboundTemplate {
    instructions: Vec<bpf_insn>,
    rodata: Vec<u8>,
    cookie_at: usize,
    /// Maps the instructions refer to by number.
    _maps: Vec<OwnedFd>,
}

impl InboundTemplate {
    /// Prepares the program from the object that `ebpf` was loaded from.
    pub fn new(pins: &Pins, ebpf: &Ebpf, level: LogLevel) -> Result<Self> {
        let mut object = Object::parse(objects::CORE).context("parse the kernel programs")?;
        object.programs.retain(|name, _| name == SK_LOOKUP_PROGRAM);
        let iface = [u8::from(probe::ingress_ifindex())];
        object
            .patch_map_data(HashMap::from([
                ("POD_NETNS", (&MARK.to_ne_bytes()[..], true)),
                ("CAN_SEE_IFACE", (&iface[..], true)),
                (aya_log::LEVEL, (&[level.0][..], true)),
            ]))
            .context("set the globals of the sk_lookup program")?;

        let mut fds = Vec::new();
        let mut owned = Vec::new();
        let mut globals = None;
        for (name, map) in &object.maps {
            let data = map.data();
            let position = data
                .windows(size_of::<u64>())
                .position(|word| word == MARK.to_ne_bytes());
            let number = if let Some(cookie_at) = position {
                globals = Some((data.to_vec(), cookie_at));
                RODATA
            } else {
                let fd = if map.section_kind() == EbpfSectionKind::Rodata {
                    constants(data).with_context(|| format!("create {name}"))?
                } else {
                    map_fd(pins, ebpf, name)?
                };
                let number = fd.as_raw_fd();
                owned.push(fd);
                number
            };
            fds.push((name.clone(), number, map.clone()));
        }
        let (rodata, cookie_at) = globals.context("no POD_NETNS in the kernel programs")?;

        let text_sections: HashSet<usize> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        object
            .relocate_maps(
                fds.iter().map(|(name, fd, map)| (name.as_str(), *fd, map)),
                &text_sections,
            )
            .context("relocate the sk_lookup program's maps")?;
        object
            .relocate_calls(&text_sections)
            .context("relocate the sk_lookup program's calls")?;
        object.sanitize_functions(aya::features());
        let program = object
            .programs
            .get(SK_LOOKUP_PROGRAM)
            .with_context(|| format!("no program {SK_LOOKUP_PROGRAM} in the object"))?;
        let instructions = object.functions[&program.function_key()]
            .instructions
            .clone();
        Ok(Self {
            instructions,
            rodata,
            cookie_at,
            _maps: owned,
        })
    }

    /// Loads an instance for one network namespace.
    pub fn instance(&self, cookie: NetnsCookie) -> Result<OwnedFd> {
        let mut values = self.rodata.clone();
        values[self.cookie_at..self.cookie_at + size_of::<u64>()]
            .copy_from_slice(&cookie.get().to_ne_bytes());
        let rodata = constants(&values).context("create the sk_lookup program's globals")?;
        let mut instructions = self.instructions.clone();
        for instruction in &mut instructions {
            if is_wide_load(instruction) && instruction.imm == RODATA {
                instruction.imm = rodata.as_raw_fd();
            }
        }
        sys::program_load(
            bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP,
            Some(bpf_attach_type::BPF_SK_LOOKUP),
            SK_LOOKUP_PROGRAM,
            &instructions,
        )
        .context("load the sk_lookup program")
    }
}

/// A map of read-only data, like the `.rodata` sections of object files.
fn constants(values: &[u8]) -> io::Result<OwnedFd> {
    let map = sys::map_create(
        bpf_map_type::BPF_MAP_TYPE_ARRAY,
        "st_rodata",
        size_of::<u32>() as u32,
        values.len() as u32,
        1,
        BPF_F_RDONLY_PROG,
    )?;
    sys::map_update(map.as_fd(), &0_u32.to_ne_bytes(), values, 0)?;
    sys::map_freeze(map.as_fd())?;
    Ok(map)
}

/// Whether this is `ld_imm64`, the instruction that carries map descriptors.
fn is_wide_load(instruction: &bpf_insn) -> bool {
    const LD_IMM64: u8 = 0x18;
    instruction.code == LD_IMM64
}

/// A map of the object by name: pinned, or private to the loaded programs (their log).
fn map_fd(pins: &Pins, ebpf: &Ebpf, name: &str) -> Result<OwnedFd> {
    if PINNED.contains(&name) {
        let path = pins.map(name);
        return sys::open_pin(&path).with_context(|| format!("open map {}", path.display()));
    }
    let map = ebpf
        .map(name)
        .ok_or_else(|| anyhow!("the loaded programs have no map {name}"))?;
    let fd = match map {
        aya::maps::Map::RingBuf(map)
        | aya::maps::Map::Array(map)
        | aya::maps::Map::HashMap(map) => map.fd().as_fd().try_clone_to_owned()?,
        _ => return Err(anyhow!("map {name} is neither pinned nor of a known kind")),
    };
    Ok(fd)
}
