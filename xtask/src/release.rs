//! `cargo xtask release`: every file of a release, from a checkout without changes. The same commit gives the same bytes, in
//! whatever folder, with the same compilers. Nothing is uploaded or signed.

mod chart;
mod packages;
mod place;
mod records;

use std::process::ExitCode;

use anyhow::Result;

pub use self::place::Options;
use self::place::{Release, VERSION};
use crate::{
    arch::Arch,
    build, image,
    run::require_root,
    setup::{self, Needs},
};

/// Makes the files and lists them. A wrong tag and missing notes are refused before anything is built.
pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(tag) = &options.tag {
        place::check_tag(tag)?;
    }
    let notes = records::notes(options.tag.is_none())?;
    if options.check {
        print!("{notes}");
        return Ok(ExitCode::SUCCESS);
    }
    require_root("release")?;
    let release = Release::begin(options)?;
    let tools = packages::install_tools()?;
    let record_tools = records::install_tools()?;
    setup::python(Needs::Tests)?;
    for arch in &release.archs {
        build::statically_linked(*arch)?;
    }
    // Those on whose pages and scripts everything depends.
    let own = build::statically_linked(Arch::native())?;
    let pages = release.work.join("share");
    for program in ["sidetrack", "kubectl-sidetrack"] {
        image::documents(&own.join(program), &pages.join(program))?;
    }
    records::licenses(&release, &record_tools)?;
    for arch in &release.archs {
        packages::tarballs(&release, *arch)?;
        packages::deb(&release, &tools, *arch)?;
        packages::rpm(&release, &tools, *arch)?;
    }
    packages::krew(&release)?;
    let archive = release.files.join(format!("sidetrack-{VERSION}.oci.tar"));
    let tag = format!("{}:{VERSION}", options.image);
    let image = image::build(&release.archs, &tag, &archive, false)?;
    chart::package(&release, &image.digest)?;
    chart::manifests(&release, &image.digest)?;
    records::materials(&release, &record_tools)?;
    records::write_notes(&release, &notes)?;
    records::provenance(&release)?;
    records::sums(&release)?;
    release.show(&image)
}
