//! A report as a page for a browser: a single file without any other file or the network. Its
//! colours follow the setting of the browser, light or dark, and it can be printed.

use super::machine::{Machine, command_line, now};
use crate::quantity::human_bytes;
use std::fmt::Write;

/// A page.
pub(crate) struct Page {
    title: String,
    lead: String,
    verdict: Option<(bool, String)>,
    facts: Vec<(String, String)>,
    sections: Vec<Section>,
    repeat: Option<String>,
    versions: Vec<(String, String)>,
    made: Made,
}

/// When, where and how the measurements of a page were made.
pub(crate) struct Made {
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) machine: Machine,
    /// The version of Outlast.
    pub(crate) version: String,
}

impl Made {
    /// By this command.
    pub(crate) fn now() -> Made {
        let (date, command, machine) = (now(), command_line(), Machine::this());
        Made { date, command, machine, version: env!("CARGO_PKG_VERSION").into() }
    }
}

/// A part of a page with a headline: a sentence, then figures with their tables.
pub(crate) struct Section {
    title: String,
    text: String,
    body: String,
}

/// A table. On narrow screens a table with more than four columns becomes a list for each row.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// How many columns, from the left, are names; numbers follow.
    pub(crate) names: usize,
    /// The rows with a violation.
    pub(crate) bad: Vec<usize>,
    /// The rows of Outlast among contenders.
    pub(crate) ours: Vec<usize>,
}

impl Page {
    pub(crate) fn new(title: impl Into<String>, lead: impl Into<String>) -> Page {
        Page {
            title: title.into(),
            lead: lead.into(),
            verdict: None,
            facts: Vec::new(),
            sections: Vec::new(),
            repeat: None,
            versions: Vec::new(),
            made: Made::now(),
        }
    }

    /// Says that another command has made the measurements.
    pub(crate) fn made(mut self, made: Made) -> Page {
        self.made = made;
        self
    }

    /// The verdict below the title, and whether it is good.
    pub(crate) fn verdict(mut self, is_good: bool, text: impl Into<String>) -> Page {
        self.verdict = Some((is_good, text.into()));
        self
    }

    /// A number with its meaning, among the first things on the page.
    pub(crate) fn fact(mut self, value: impl std::fmt::Display, meaning: &str) -> Page {
        self.facts.push((value.to_string(), meaning.to_string()));
        self
    }

    pub(crate) fn section(mut self, section: Section) -> Page {
        self.sections.push(section);
        self
    }

    /// The command that makes the choices of this run again.
    pub(crate) fn repeat(mut self, command: impl Into<String>) -> Page {
        self.repeat = Some(command.into());
        self
    }

    /// A further fact about the origin of the page, such as the version of a program.
    pub(crate) fn origin(mut self, term: &str, text: impl std::fmt::Display) -> Page {
        self.versions.push((term.into(), text.to_string()));
        self
    }

    pub(crate) fn html(&self) -> String {
        let mut page = String::new();
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
             <link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n{}</style>\n\
             </head>\n<body>\n<main>\n<p class=\"brand\"><b>outlast</b> report</p>\n\
             <h1>{}</h1>\n",
            escape(&self.title),
            include_str!("page.css"),
            escape(&self.title),
        );
        if let Some((is_good, text)) = &self.verdict {
            let class = if *is_good { "good" } else { "bad" };
            let _ = writeln!(page, "<div class=\"verdict {class}\">{}</div>", escape(text));
        }
        let _ = writeln!(page, "<p>{}</p>", escape(&self.lead));
        if !self.facts.is_empty() {
            page.push_str("<div class=\"facts\">\n");
            for (value, meaning) in &self.facts {
                let (value, meaning) = (escape(value), escape(meaning));
                let _ = writeln!(
                    page,
                    "<div class=\"fact\"><b>{value}</b><span>{meaning}</span></div>"
                );
            }
            page.push_str("</div>\n");
        }
        for section in &self.sections {
            let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&section.title));
            if !section.text.is_empty() {
                let _ = writeln!(page, "<p>{}</p>", escape(&section.text));
            }
            let _ = writeln!(page, "{}</section>", section.body);
        }
        self.add_origin(&mut page);
        let _ = write!(
            page,
            "</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>\n{}</script>\n\
             </body>\n</html>\n",
            include_str!("page.js")
        );
        page
    }

    /// The command, the machine and the versions.
    fn add_origin(&self, page: &mut String) {
        let Made { date, command, machine, version } = &self.made;
        let _ =
            write!(page, "<footer>\n<h2>How this was made</h2>\n<pre>{}</pre>\n", escape(command));
        if let Some(repeat) = &self.repeat {
            let _ = write!(
                page,
                "<p class=\"muted\">The choices of this run again:</p>\n<pre>{}</pre>\n",
                escape(repeat)
            );
        }
        let mut rows = vec![
            ("Date".to_string(), date.clone()),
            ("Processor".to_string(), format!("{} cores, {}", machine.cores, machine.processor)),
            ("Memory".to_string(), format!("{} available", human_bytes(machine.memory_bytes))),
            ("Linux".to_string(), machine.kernel.clone()),
            ("Outlast".to_string(), version.clone()),
        ];
        rows.extend(self.versions.iter().cloned());
        page.push_str("<dl>\n");
        for (term, text) in rows {
            let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(&term), escape(&text));
        }
        page.push_str("</dl>\n</footer>\n");
    }
}

impl Section {
    pub(crate) fn new(title: impl Into<String>, text: impl Into<String>) -> Section {
        Section { title: title.into(), text: text.into(), body: String::new() }
    }

    /// Adds a figure, which is HTML already.
    pub(crate) fn figure(mut self, html: &str) -> Section {
        self.body.push_str(html);
        self
    }

    /// Adds a smaller headline.
    pub(crate) fn headline(mut self, text: &str) -> Section {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(text));
        self
    }

    /// Adds text as it is, such as the output of a command.
    pub(crate) fn text(mut self, text: &str) -> Section {
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(text));
        self
    }

    pub(crate) fn table(mut self, table: &Table) -> Section {
        self.body.push_str(&table.html());
        self
    }
}

impl Table {
    pub(crate) fn new(names: usize, header: &[&str]) -> Table {
        let header = header.iter().map(ToString::to_string).collect();
        Table { header, names, ..Table::default() }
    }

    fn html(&self) -> String {
        let is_wide = self.header.len() > 4;
        let class = |column: usize| if column < self.names { " class=\"name\"" } else { "" };
        let mut html =
            format!("<table{}>\n<thead><tr>", if is_wide { " class=\"wide\"" } else { "" });
        for (column, text) in self.header.iter().enumerate() {
            let _ = write!(html, "<th{}>{}</th>", class(column), escape(text));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for (index, row) in self.rows.iter().enumerate() {
            let kind = match (self.bad.contains(&index), self.ours.contains(&index)) {
                (true, _) => " class=\"bad\"",
                (_, true) => " class=\"ours\"",
                _ => "",
            };
            let _ = write!(html, "<tr{kind}>");
            for (column, text) in row.iter().enumerate() {
                let label = self.header.get(column).map_or("", String::as_str);
                let _ = write!(
                    html,
                    "<td{} data-label=\"{}\">{}</td>",
                    class(column),
                    escape(label),
                    escape(text)
                );
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody>\n</table>\n");
        html
    }
}

/// A text for HTML and SVG, also inside attributes in double quotes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let evil = "<script>alert(\"1\")</script>&";
        let mut table = Table::new(1, &[evil]);
        table.rows.push(vec![evil.into()]);
        let section = Section::new(evil, evil).headline(evil).text(evil).table(&table);
        let page = Page::new(evil, evil).verdict(true, evil).fact(evil, evil).section(section);
        let html = page.repeat(evil).origin(evil, evil).html();
        assert!(!html.contains("<script>alert"), "{html}");
        assert_eq!(
            html.matches("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;").count(),
            16
        );
    }
}
