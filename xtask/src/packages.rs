//! The packages of the crates that are published.
//!
//! A package holds copies of what the manifest names, and nothing above the folder of the crate. So
//! each crate has links to the licenses, the examples and the other files that it needs, and cargo
//! packs what a link leads to. This module makes the packages without the network and looks into
//! them.

use crate::gate::{Gate, cargo, minutes, target_folder, workspace};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of the workspace that each package has a copy of.
const COPIES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// A crate that is published.
#[derive(Debug, PartialEq, Eq)]
struct Published {
    name: String,
    version: String,
    /// The sources of its libraries, programs, examples and tests, relative to its folder.
    sources: Vec<PathBuf>,
}

impl Published {
    /// Reads a package of `cargo metadata`; `None` if it is not published.
    fn of_metadata(package: &Value) -> Option<Published> {
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            return None;
        }
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
        let sources = package["targets"].as_array()?.iter();
        Some(Published {
            name: package["name"].as_str()?.to_string(),
            version: package["version"].as_str()?.to_string(),
            sources: sources
                .filter_map(|target| {
                    let path = Path::new(target["src_path"].as_str()?);
                    Some(path.strip_prefix(folder).unwrap_or(path).to_path_buf())
                })
                .collect(),
        })
    }

    /// Checks an unpacked package.
    fn check(&self, folder: &Path) -> anyhow::Result<()> {
        for copy in COPIES {
            let packed = std::fs::read(folder.join(copy))
                .with_context(|| format!("the package {} has no {copy}", self.name))?;
            let original = std::fs::read(workspace().join(copy))?;
            ensure!(packed == original, "the package {} has another {copy}", self.name);
        }
        for source in &self.sources {
            let is_packed = folder.join(source).is_file();
            ensure!(is_packed, "the package {} does not have {}", self.name, source.display());
        }
        Ok(())
    }
}

/// Makes the packages, and compiles each from its package alone if `must_compile` says so. They
/// need no network: cargo knows the crates that they depend on from the steps before.
pub(crate) fn check(gate: &mut Gate, must_compile: bool) -> anyhow::Result<()> {
    let metadata = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .context("asking cargo for the packages")?;
    ensure!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    let published: Vec<Published> = packages.iter().filter_map(Published::of_metadata).collect();
    ensure!(!published.is_empty(), "no crate is published");

    let mut package = cargo(&["package", "--offline", "--allow-dirty", "--quiet"]);
    package.args(published.iter().map(|package| format!("--package={}", package.name)));
    if must_compile {
        gate.step("compiling the packages", minutes(20), package)?;
    } else {
        package.arg("--no-verify");
        gate.step("packages", minutes(5), package)?;
    }
    gate.step_here("contents of the packages", || {
        let folder = target_folder().join("package");
        for package in &published {
            package.check(&unpack(&folder, &format!("{}-{}", package.name, package.version))?)?;
        }
        Ok(())
    })
}

/// Unpacks a package into a folder of its own, and returns the folder.
fn unpack(packages: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let unpacked = packages.join("unpacked");
    std::fs::create_dir_all(&unpacked)?;
    let folder = unpacked.join(name);
    let _ = std::fs::remove_dir_all(&folder);
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(packages.join(format!("{name}.crate"))).arg("-C").arg(&unpacked);
    ensure!(tar.status().context("running tar")?.success(), "tar cannot unpack {name}.crate");
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn crates_that_are_not_published_have_no_package() {
        let package = |publish: Value| {
            json!({
                "name": "outlast",
                "version": "0.1.0",
                "manifest_path": "/w/crates/outlast/Cargo.toml",
                "publish": publish,
                "targets": [
                    { "src_path": "/w/crates/outlast/src/lib.rs" },
                    { "src_path": "/w/examples/far.rs" },
                ],
            })
        };
        assert_eq!(Published::of_metadata(&package(json!([]))), None);
        let published = Published::of_metadata(&package(Value::Null)).expect("published");
        // A source outside the folder of the crate keeps its path, and is found in no package.
        let sources = [Path::new("src/lib.rs"), Path::new("/w/examples/far.rs")];
        assert_eq!(published.sources, sources);
    }

    #[test]
    fn a_package_without_a_license_is_refused() {
        let folder = std::env::temp_dir().join(format!("outlast-package-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let package =
            Published { name: "outlast".into(), version: "0.1.0".into(), sources: Vec::new() };
        let error = package.check(&folder).expect_err("no license").to_string();
        std::fs::write(folder.join("LICENSE-APACHE"), "../../LICENSE-APACHE").expect("written");
        let other = package.check(&folder).expect_err("another license").to_string();
        for copy in COPIES {
            std::fs::copy(workspace().join(copy), folder.join(copy)).expect("copied");
        }
        let complete = package.check(&folder);
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(error, "the package outlast has no LICENSE-APACHE");
        assert_eq!(other, "the package outlast has another LICENSE-APACHE");
        assert!(complete.is_ok(), "{complete:?}");
    }
}
