//! The frame of a self-contained page: style, sections, tables, legends. No script, nothing from elsewhere.
//! Next: `page.rs`, which fills it.

use super::svg::escape;
use std::fmt::Write;

/// A page under construction.
#[derive(Clone, Debug)]
pub struct Html {
    title: String,
    body: String,
}

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; color: #1c2024; background: #fff;
  max-width: 1140px; margin: 28px auto 60px; padding: 0 16px; }
h1 { font-size: 24px; margin: 0 0 2px; }
h2 { font-size: 18px; margin: 38px 0 4px; padding-top: 14px; border-top: 1px solid #d9dde1; }
h3 { font-size: 15px; margin: 20px 0 4px; }
p { margin: 4px 0 10px; max-width: 900px; }
.sub { color: #5b646d; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0 6px; }
.tile { border: 1px solid #d9dde1; border-radius: 8px; padding: 10px 14px; min-width: 150px; background: #f8f9fa; }
.tile b { display: block; font-size: 21px; }
.tile span { color: #5b646d; font-size: 12.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 4px 0 8px; font-size: 13px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.pair { display: flex; flex-wrap: wrap; gap: 16px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 6px 0 12px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #5b646d; font-size: 12.5px; }
th, td { padding: 3px 16px 3px 0; border-bottom: 1px solid #eceff1; vertical-align: top; }
td.n, th.n { text-align: right; }
svg { max-width: 100%; height: auto; display: block; }
.legend svg { display: inline-block; flex: none; }
svg text { font: 12.5px system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; fill: #1c2024; }
svg text.small { font-size: 11px; fill: #4b545d; }
svg text.cell { font-size: 11px; }
svg text.inverse { fill: #fff; }
summary { cursor: pointer; color: #2f6db3; margin: 4px 0; }
svg text.value { font-size: 12px; }
svg line.grid { stroke: #e4e7ea; } svg line.axis { stroke: #7a838c; } svg line.mark { stroke: #c0392b; }
";

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Words.
    Text,
    /// Figures.
    Number,
}

impl Html {
    /// A page with a heading and a line below it.
    pub fn new(title: &str, subtitle: &str) -> Html {
        let body = format!("<h1>{}</h1>\n<div class=\"sub\">{}</div>\n", escape(title), escape(subtitle));
        Html { title: title.to_owned(), body }
    }

    /// A section's heading.
    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(title));
    }

    /// A heading within a section.
    pub fn heading(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escape(title));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// A list.
    pub fn list(&mut self, lines: &[String]) {
        self.body.push_str("<ul>\n");
        for line in lines {
            let _ = writeln!(self.body, "<li>{}</li>", escape(line));
        }
        self.body.push_str("</ul>\n");
    }

    /// Large figures with what they are.
    pub fn tiles(&mut self, tiles: &[(String, String)]) {
        self.body.push_str("<div class=\"tiles\">\n");
        for (figure, meaning) in tiles {
            let _ = writeln!(
                self.body,
                "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                escape(figure),
                escape(meaning)
            );
        }
        self.body.push_str("</div>\n");
    }

    /// Marks (as elements) with their meanings.
    pub fn legend<S: AsRef<str>>(&mut self, entries: impl IntoIterator<Item = (String, S)>) {
        self.body.push_str("<div class=\"legend\">\n");
        for (mark, meaning) in entries {
            let _ = writeln!(self.body, "<span>{mark}{}</span>", escape(meaning.as_ref()));
        }
        self.body.push_str("</div>\n");
    }

    /// A drawing.
    pub fn drawing(&mut self, svg: &str) {
        let _ = writeln!(self.body, "<div class=\"wide\">{svg}</div>");
    }

    /// Drawings side by side.
    pub fn pair(&mut self, svgs: &[String]) {
        let _ = writeln!(self.body, "<div class=\"pair\">{}</div>", svgs.concat());
    }

    /// A table that opens when its summary is clicked.
    pub fn folded_table<const N: usize>(&mut self, summary: &str, columns: [(&str, Column); N], rows: &[[String; N]]) {
        let _ = writeln!(self.body, "<details><summary>{}</summary>", escape(summary));
        self.table(columns, rows);
        self.body.push_str("</details>\n");
    }

    /// A table.
    pub fn table<const N: usize>(&mut self, columns: [(&str, Column); N], rows: &[[String; N]]) {
        let class = |column: Column| if column == Column::Number { " class=\"n\"" } else { "" };
        self.body.push_str("<div class=\"wide\"><table>\n<tr>");
        for (name, column) in columns {
            let _ = write!(self.body, "<th{}>{}</th>", class(column), escape(name));
        }
        self.body.push_str("</tr>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for (cell, (_, column)) in row.iter().zip(columns) {
                let _ = write!(self.body, "<td{}>{}</td>", class(column), escape(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</table></div>\n");
    }

    /// The page.
    pub fn finish(&self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
            escape(&self.title),
            self.body
        )
    }
}
