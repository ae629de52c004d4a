//! What the compiled programs may take so that the oldest kernels load them.

use object::{Object as _, ObjectSection as _, SectionKind, read::elf::ElfFile64};

use super::{ACCELERATE, CORE, DNS, FORWARD};

/// `MAX_BPF_STACK` of the kernel's verifier, in bytes.
const STACK: u32 = 512;
/// The verifier counts frames in steps of so many bytes before Linux 6.8 (`check_max_stack_depth`).
const STEP: u32 = 32;

/// Offsets from the frame pointer and calls of other functions of the object, as far as single instructions show them.
/// Source of the encoding: Documentation/bpf/standardization/instruction-set.rst of Linux.
#[derive(Debug)]
struct Code {
    stack: u32,
    has_calls: bool,
}

impl Code {
    fn of(instructions: &[u8]) -> Self {
        const FRAME: u8 = 10;
        const STORE_OR_LOAD: [u8; 3] = [1, 2, 3];
        const MOVE: u8 = 0xbf;
        const ADD: u8 = 0x07;
        const CALL: u8 = 0x85;
        const PSEUDO_CALL: u8 = 1;
        let mut code = Self {
            stack: 0,
            has_calls: false,
        };
        // The register that an instruction has copied the frame pointer into, for the next one.
        let mut copy = None;
        for instruction in instructions.as_chunks::<8>().0 {
            let [operation, registers, low, high, number @ ..] = *instruction;
            let (to, from) = (registers & 15, registers >> 4);
            let class = operation & 7;
            let base = if class == 1 { from } else { to };
            if STORE_OR_LOAD.contains(&class) && base == FRAME {
                let offset = i16::from_le_bytes([low, high]);
                code.stack = code.stack.max(below(offset.into()));
            }
            if operation == ADD && copy == Some(to) {
                code.stack = code.stack.max(below(i32::from_le_bytes(number)));
            }
            copy = (operation == MOVE && from == FRAME).then_some(to);
            code.has_calls |= operation == CALL && from == PSEUDO_CALL;
        }
        code
    }

    /// Whether the verifier takes it together with `callees`, what the deepest function it may call has.
    fn fits(&self, callees: u32) -> bool {
        let called = if self.has_calls { callees } else { 0 };
        frame(self.stack) + called <= STACK
    }
}

/// How far below the frame pointer an offset is.
fn below(offset: i32) -> u32 {
    if offset < 0 { offset.unsigned_abs() } else { 0 }
}

/// What a function's frame counts for.
fn frame(stack: u32) -> u32 {
    stack.max(1).next_multiple_of(STEP)
}

#[test]
fn programs_and_what_they_call_fit_in_the_stack() {
    let objects = [
        ("core", CORE),
        ("forward", FORWARD),
        ("accelerate", ACCELERATE),
        ("dns", DNS),
    ];
    for (name, object) in objects {
        let file: ElfFile64<'_> = ElfFile64::parse(object).unwrap();
        let sections: Vec<_> = file
            .sections()
            .filter(|it| it.kind() == SectionKind::Text && it.size() > 0)
            .map(|it| (it.name().unwrap().to_owned(), Code::of(it.data().unwrap())))
            .collect();
        assert!(!sections.is_empty(), "{name} has no programs");
        // Functions that programs call stand together in one section. Each is a leaf, or counts for the others, too.
        let is_callee = |section: &str| section == ".text";
        let callees: u32 = sections
            .iter()
            .filter(|(section, _)| is_callee(section))
            .map(|(_, code)| frame(code.stack) * if code.has_calls { 2 } else { 1 })
            .sum();
        for (section, code) in sections.iter().filter(|(it, _)| !is_callee(it)) {
            assert!(
                code.fits(callees),
                "{name}: {section} has {code:?}, and what it calls {callees} bytes more"
            );
        }
    }
}

#[test]
fn code_is_read_as_the_kernel_reads_it() {
    // *(u64 *)(r10 - 488) = r1
    let store = [0x7b, 0x1a, 0x18, 0xfe, 0, 0, 0, 0];
    // r2 = r10; r2 += -496
    let copy = [0xbf, 0xa2, 0, 0, 0, 0, 0, 0];
    let add = [0x07, 0x02, 0, 0, 0x10, 0xfe, 0xff, 0xff];
    // call a function of the object; call helper 1
    let call = [0x85, 0x10, 0, 0, 5, 0, 0, 0];
    let helper = [0x85, 0, 0, 0, 1, 0, 0, 0];
    let code = Code::of(&[store, helper].concat());
    assert_eq!((code.stack, code.has_calls), (488, false));
    assert!(code.fits(STEP));
    let code = Code::of(&[store, copy, add, call].concat());
    assert_eq!((code.stack, code.has_calls), (496, true));
    assert!(!code.fits(STEP), "Linux 6.1 rejects this");
}
