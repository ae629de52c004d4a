//! The architectures that sidetrack is built for, under the names that others have for them.

use clap::ValueEnum;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Arch {
    /// x86-64, with its name in Debian, Go and OCI images.
    #[value(alias = "x86_64")]
    Amd64,
    /// 64-bit Arm.
    #[value(alias = "aarch64")]
    Arm64,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// This machine's.
    pub fn native() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Arm64
        } else {
            Self::Amd64
        }
    }

    /// The name in Debian, Go and OCI images.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The name in triples, RPM and QEMU.
    pub fn machine(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Rust's triple.
    pub fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.machine())
    }

    /// The prefix of the C compiler and the binutils for it.
    pub fn gnu(self) -> String {
        format!("{}-linux-gnu", self.machine())
    }
}
