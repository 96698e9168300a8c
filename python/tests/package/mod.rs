//! The Python package with the module that cargo has built, for the tests of this folder.

use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// Makes a folder with the package, for PYTHONPATH: links to its files, and to the module in
/// `library_folder`.
pub(crate) fn link_package(library_folder: &Path) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("outlast");
    std::fs::create_dir(&package).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("outlast");
    for name in ["__init__.py", "__init__.pyi", "py.typed"] {
        symlink(source.join(name), package.join(name)).expect("a link");
    }
    let library = library_folder.join("liboutlast_py.so");
    symlink(library, package.join("_outlast.abi3.so")).expect("a link");
    folder
}
