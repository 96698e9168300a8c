//! Passes the run path of the MPI library, if it is used, on to the library and the tests.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for folder in std::env::var("DEP_OUTLAST_MPI_RPATH")
        .unwrap_or_default()
        .split(':')
        .filter(|f| !f.is_empty())
    {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
