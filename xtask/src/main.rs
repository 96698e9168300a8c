//! `cargo xtask`: the one tool for working on Outlast.

mod mpi;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("mpi") => {
            let folder = mpi::install()?;
            println!("Open MPI with ULFM is in {}", folder.display());
            Ok(())
        }
        other => anyhow::bail!("unknown task {other:?}; there is: mpi"),
    }
}
