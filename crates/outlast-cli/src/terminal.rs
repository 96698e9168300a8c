//! What the terminal can show: colours, and characters that are as high as a count.

/// Colours are off if NO_COLOR has any value, and on terminals without them.
pub(crate) fn wants_colours(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).filter(|value| !value.is_empty());
    is_set("NO_COLOR").is_none() && is_set("TERM").is_some_and(|term| term != "dumb")
}

/// Block characters are used unless the locale names another character set than UTF-8.
pub(crate) fn has_blocks(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let set = locale.as_deref().and_then(|locale| locale.split_once('.')).map(|(_, set)| set);
    set.is_none_or(|set| set.to_ascii_lowercase().replace('-', "").starts_with("utf8"))
}

/// A character that is as high as the count.
pub(crate) fn level(count: u64, most: u64, has_blocks: bool) -> char {
    let levels = if has_blocks { "▁▂▃▄▅▆▇█" } else { ".:-=+*%#" };
    match count {
        0 => ' ',
        count => levels.chars().nth((count * 8).div_ceil(most).max(1) as usize - 1).unwrap_or('#'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_blocks_follow_the_environment() {
        let variables = |set: &'static [(&str, &str)]| {
            move |name: &str| {
                let found = set.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| value.to_string())
            }
        };
        assert!(wants_colours(variables(&[("TERM", "xterm")])));
        assert!(wants_colours(variables(&[("TERM", "xterm"), ("NO_COLOR", "")])));
        for without in [
            &[][..],
            &[("TERM", "dumb")],
            &[("TERM", "xterm"), ("NO_COLOR", "1")],
            &[("TERM", "xterm"), ("NO_COLOR", "0")],
        ] {
            assert!(!wants_colours(variables(without)), "{without:?}");
        }
        for with in [&[][..], &[("LANG", "C.UTF-8")], &[("LANG", "en_US.utf8")], &[("LANG", "C")]] {
            assert!(has_blocks(variables(with)), "{with:?}");
        }
        assert!(!has_blocks(variables(&[("LC_ALL", "de_DE.ISO-8859-1"), ("LANG", "C.UTF-8")])));
    }
}
