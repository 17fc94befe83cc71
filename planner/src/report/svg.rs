//! A small builder of SVG: shapes with tooltips, text, axes with round ticks. It knows no plan. Next: `palette.rs`.

use std::fmt::{Display, Write};

/// Where a text is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its start is at the point.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// A drawing under construction.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// An empty drawing of a size in pixels.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// A filled rectangle with a tooltip (none if empty).
    pub fn rect(&mut self, rect: Rect, fill: &str, tooltip: &str) {
        self.rect_with(rect, &format!("fill=\"{fill}\""), tooltip);
    }

    /// A rectangle with any attributes.
    pub fn rect_with(&mut self, rect: Rect, attributes: &str, tooltip: &str) {
        let Rect { x, y, width, height } = rect;
        let (x, y, width, height) = (px(x), px(y), px(width.max(0.0)), px(height.max(0.0)));
        let _ = write!(self.body, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {attributes}");
        self.close("rect", tooltip);
    }

    /// A circle.
    pub fn circle(&mut self, x: f64, y: f64, radius: f64, attributes: &str) {
        let (x, y, radius) = (px(x), px(y), px(radius));
        let _ =
            writeln!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {attributes} pointer-events=\"none\"/>");
    }

    /// A straight line of a CSS class (`axis`, `grid`, `mark`).
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, y1, x2, y2) = (px(from.0), px(from.1), px(to.0), px(to.1));
        let _ = writeln!(self.body, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>");
    }

    /// Text of a CSS class (`label`, `value`, `small`); `y` is the base line.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (px(x), px(y), escape(&text.to_string()));
        let _ =
            writeln!(self.body, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>");
    }

    fn close(&mut self, element: &str, tooltip: &str) {
        if tooltip.is_empty() {
            self.body.push_str("/>\n");
        } else {
            let _ = writeln!(self.body, "><title>{}</title></{element}>", escape(tooltip));
        }
    }

    /// The element, with a label for those who do not see it.
    pub fn finish(&self, label: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" \
             role=\"img\" aria-label=\"{2}\">\n{3}</svg>\n",
            px(self.width),
            px(self.height),
            escape(label),
            self.body
        )
    }
}

/// A coordinate with as many digits as an eye can see.
fn px(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text that is safe inside elements and attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Round values from 0 to at least `end`, about `count` of them.
pub fn ticks(end: f64, count: u32) -> Vec<f64> {
    if !(end > 0.0 && end.is_finite()) {
        return vec![0.0];
    }
    let rough = end / f64::from(count.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * power);
    (0..=(end / step).ceil() as u32).map(|index| f64::from(index) * step).collect()
}

/// A number with three significant digits or so, without trailing zeros.
pub fn number(value: f64) -> String {
    // An empty sum is -0.
    let value = value + 0.0;
    let digits = match value.abs() {
        x if x >= 100.0 || x == 0.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        for (end, count, expected) in [
            (104.0, 5, vec![0.0, 50.0, 100.0, 150.0]),
            (0.9, 4, vec![0.0, 0.5, 1.0]),
            (7.0, 7, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
            (0.0, 5, vec![0.0]),
            (f64::NAN, 5, vec![0.0]),
        ] {
            assert_eq!(ticks(end, count), expected, "{end}");
        }
    }

    #[test]
    fn numbers_have_the_digits_that_matter() {
        for (value, expected) in
            [(1234.5, "1234"), (52.34, "52.3"), (3.0, "3"), (1.258, "1.26"), (0.0625, "0.062"), (-0.0, "0")]
        {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn names_from_files_cannot_break_out_of_the_drawing() {
        let mut svg = Svg::new(10.0, 10.0);
        svg.text(1.0, 2.0, Anchor::End, "label", "<script>&\"");
        svg.rect(Rect { x: 0.0, y: 0.0, width: -1.0, height: 1.5 }, "red", "a<b");
        let text = svg.finish("x");
        assert!(text.contains("&lt;script&gt;&amp;&quot;</text>") && text.contains("<title>a&lt;b</title>"), "{text}");
        assert!(text.contains("width=\"0\" height=\"1.5\""), "{text}");
    }
}
