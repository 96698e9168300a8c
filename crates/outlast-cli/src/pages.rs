//! `outlast pages`: writes the man pages and the completions of shells, for packages and for
//! `cargo xtask install`. The subcommand is hidden: users get the files with the command.

use crate::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Writes the man pages and the completions of shells below a folder, as a prefix has them.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// The prefix, such as /usr/local.
    prefix: PathBuf,
}

/// A folder for completions below the prefix, the file in it, and the shell.
const COMPLETIONS: [(&str, &str, Shell); 3] = [
    ("share/bash-completion/completions", "outlast", Shell::Bash),
    ("share/zsh/site-functions", "_outlast", Shell::Zsh),
    ("share/fish/vendor_completions.d", "outlast.fish", Shell::Fish),
];

impl Pages {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let folder = self.prefix.join("share/man/man1");
        make(&folder)?;
        clap_mangen::generate_to(visible(), &folder)
            .with_context(|| format!("writing man pages to {}", folder.display()))?;
        for (folder, name, shell) in COMPLETIONS {
            let folder = self.prefix.join(folder);
            make(&folder)?;
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut visible(), "outlast", &mut text);
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(true)
    }
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

/// The command without its hidden subcommands, which are for the processes that it starts.
fn visible() -> clap::Command {
    let whole = Cli::command();
    let shown: Vec<clap::Command> =
        whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let mut command = clap::Command::new("outlast").version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = whole.get_about() {
        command = command.about(about.clone());
    }
    if let Some(about) = whole.get_long_about() {
        command = command.long_about(about.clone());
    }
    command.subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_completions_name_the_subcommands_and_no_hidden_subcommand() {
        let prefix = std::env::temp_dir().join(format!("outlast-pages-{}", std::process::id()));
        Pages { prefix: prefix.clone() }.execute().expect("written");
        let read = |path: &str| std::fs::read_to_string(prefix.join(path)).expect(path);
        let texts = [
            read("share/man/man1/outlast.1"),
            read("share/bash-completion/completions/outlast"),
            read("share/zsh/site-functions/_outlast"),
            read("share/fish/vendor_completions.d/outlast.fish"),
        ];
        let page = read("share/man/man1/outlast-run.1");
        std::fs::remove_dir_all(&prefix).expect("removed");
        assert!(page.contains("members"), "{page}");
        for text in texts {
            assert!(text.contains("doctor"), "{text}");
            assert!(!text.contains("demo\\-member") && !text.contains("demo-member"), "{text}");
        }
    }
}
