//! Golden figures: what each model on each device is planned to reach, kept as CSV in the project. A plan that became
//! slower, or whose bytes changed without a declared reason, is a finding. Pure; `cli/check.rs` plans and reads files.

use std::fmt::Write;

/// Slower than this over the golden figure is worse.
const TOLERANCE: f64 = 1.01;

const HEADER: &str = "device,model,vram_mib,ubatch_tokens,decode_us,prefill_us,workload_us,plan,reason";

/// Figures of a model on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Device profile.
    pub device: String,
    /// Model.
    pub model: String,
    /// GPU ceiling; 0 = no GPU.
    pub vram_mib: u64,
    /// Chosen ubatch.
    pub ubatch_tokens: u32,
    /// A decode round.
    pub decode_us: f64,
    /// A prefill round.
    pub prefill_us: f64,
    /// The workload that was planned for.
    pub workload_us: f64,
    /// Hash of the plan's bytes.
    pub plan: String,
}

/// Figures, and why they are what they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// The figures.
    pub figures: Figures,
    /// Declared with the last change.
    pub reason: String,
}

/// A file of golden figures that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct GoldenError {
    /// 1-based.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

/// What is not as it was.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// A figure is more than 1 % above the golden one.
    Worse {
        /// Device and model.
        pair: String,
        /// Which figure.
        what: &'static str,
        /// Golden.
        was_us: f64,
        /// Now.
        is_us: f64,
    },
    /// Other bytes, though not slower.
    Changed {
        /// Device and model.
        pair: String,
        /// Workload time now over golden.
        ratio: f64,
    },
    /// Planned now, not among the golden figures.
    Unknown {
        /// Device and model.
        pair: String,
    },
    /// Golden, but not planned now.
    Missing {
        /// Device and model.
        pair: String,
    },
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Worse { pair, what, was_us, is_us } => {
                let percent = 100.0 * (is_us / was_us - 1.0);
                let (was, is) = (was_us / 1000.0, is_us / 1000.0);
                write!(f, "{pair}: {what} takes {is:.3} ms, {percent:.1} % more than the golden {was:.3} ms")
            }
            Finding::Changed { pair, ratio } => {
                let percent = 100.0 * (ratio - 1.0);
                write!(f, "{pair}: other bytes than the golden plan (workload time {percent:+.2} %)")
            }
            Finding::Unknown { pair } => write!(f, "{pair}: no golden figures"),
            Finding::Missing { pair } => write!(f, "{pair}: golden, but not planned"),
        }
    }
}

impl Figures {
    fn key(&self) -> (&str, &str, u64) {
        (&self.device, &self.model, self.vram_mib)
    }

    fn pair(&self) -> String {
        format!("{} on {} with {} MiB", self.model, self.device, self.vram_mib)
    }
}

/// Reads golden figures.
///
/// # Errors
/// A line that is none, by number.
pub fn parse(text: &str) -> Result<Vec<Golden>, GoldenError> {
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, HEADER)) => {}
        _ => return Err(GoldenError { line: 1, problem: format!("expected `{HEADER}`") }),
    }
    lines.filter(|(_, line)| !line.is_empty()).map(|(index, line)| parse_line(index + 1, line)).collect()
}

fn parse_line(line: usize, text: &str) -> Result<Golden, GoldenError> {
    let fail = |problem: String| GoldenError { line, problem };
    // The reason goes to the end of the line, commas and all.
    let fields: Vec<&str> = text.splitn(9, ',').collect();
    let [device, model, vram, ubatch, decode, prefill, workload, plan, reason] = fields[..] else {
        return Err(fail(format!("{} fields where 9 are expected", fields.len())));
    };
    let time = |name: &str, text: &str| match text.parse::<f64>() {
        Ok(us) if us.is_finite() && us > 0.0 => Ok(us),
        _ => Err(fail(format!("{name} `{text}` is no time"))),
    };
    Ok(Golden {
        figures: Figures {
            device: device.to_owned(),
            model: model.to_owned(),
            vram_mib: vram.parse().map_err(|_| fail(format!("vram_mib `{vram}` is no size")))?,
            ubatch_tokens: ubatch.parse().map_err(|_| fail(format!("ubatch_tokens `{ubatch}` is no count")))?,
            decode_us: time("decode_us", decode)?,
            prefill_us: time("prefill_us", prefill)?,
            workload_us: time("workload_us", workload)?,
            plan: plan.to_owned(),
        },
        reason: reason.to_owned(),
    })
}

/// Writes golden figures.
pub fn text(golden: &[Golden]) -> String {
    let mut text = format!("{HEADER}\n");
    for Golden { figures: f, reason } in golden {
        let _ = writeln!(
            text,
            "{},{},{},{},{:.1},{:.1},{:.1},{},{reason}",
            f.device, f.model, f.vram_mib, f.ubatch_tokens, f.decode_us, f.prefill_us, f.workload_us, f.plan
        );
    }
    text
}

/// Everything that is not as it was, in the order of the figures now, then what is missing.
///
/// A figure may be worse for the sake of another: only the workload's time, which the plan was made for, is held to its
/// golden value. The other two are named with it when it fails.
pub fn compare(golden: &[Golden], now: &[Figures]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for figures in now {
        let pair = figures.pair();
        let Some(Golden { figures: was, .. }) = golden.iter().find(|g| g.figures.key() == figures.key()) else {
            findings.push(Finding::Unknown { pair });
            continue;
        };
        let figure = |what, was_us: f64, is_us: f64| {
            (is_us > was_us * TOLERANCE).then(|| Finding::Worse { pair: pair.clone(), what, was_us, is_us })
        };
        match figure("the workload", was.workload_us, figures.workload_us) {
            Some(worse) => {
                findings.push(worse);
                findings.extend(figure("a decode round", was.decode_us, figures.decode_us));
                findings.extend(figure("a prefill round", was.prefill_us, figures.prefill_us));
            }
            None if was.plan != figures.plan => {
                let ratio = figures.workload_us / was.workload_us;
                findings.push(Finding::Changed { pair, ratio });
            }
            None => {}
        }
    }
    let missing = golden.iter().filter(|g| !now.iter().any(|figures| figures.key() == g.figures.key()));
    findings.extend(missing.map(|g| Finding::Missing { pair: g.figures.pair() }));
    findings
}

/// The new golden figures: those now. What changed carries the new reason, the rest keeps its own.
pub fn accept(golden: &[Golden], now: &[Figures], reason: &str) -> Vec<Golden> {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let accepted = |figures: &Figures| {
        let known = golden.iter().find(|g| g.figures.key() == figures.key() && g.figures.plan == figures.plan);
        Golden { figures: figures.clone(), reason: known.map_or(reason.clone(), |known| known.reason.clone()) }
    };
    now.iter().map(accepted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(model: &str, workload_us: f64, plan: &str) -> Figures {
        Figures {
            device: "laptop".into(),
            model: model.into(),
            vram_mib: 5000,
            ubatch_tokens: 512,
            decode_us: 100.0,
            prefill_us: 2000.0,
            workload_us,
            plan: plan.into(),
        }
    }

    fn golden(model: &str, workload_us: f64, plan: &str) -> Golden {
        Golden { figures: figures(model, workload_us, plan), reason: "first, with a comma".into() }
    }

    #[test]
    fn figures_survive_their_file() {
        let all = vec![golden("a", 1000.5, "00ff"), golden("b", 7.0, "11")];
        assert_eq!(parse(&text(&all)), Ok(all));
    }

    #[test]
    fn what_is_slower_changed_new_or_gone_is_found() {
        let was = [golden("same", 1000.0, "1"), golden("slow", 1000.0, "1"), golden("other", 1000.0, "1")];
        let with_gone = [&was[..], &[golden("gone", 1.0, "1")]].concat();
        let now = [
            figures("same", 1000.0, "1"),
            figures("slow", 1011.0, "2"),
            figures("other", 1009.0, "2"),
            figures("new", 1.0, "1"),
        ];
        let texts: Vec<String> = compare(&with_gone, &now).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 4, "{texts:#?}");
        assert!(texts[0].contains("slow on laptop with 5000 MiB") && texts[0].contains("1.1 % more"), "{}", texts[0]);
        assert!(texts[1].contains("other bytes") && texts[1].contains("+0.90 %"), "{}", texts[1]);
        assert!(texts[2].contains("new") && texts[2].contains("no golden figures"), "{}", texts[2]);
        assert!(texts[3].contains("gone") && texts[3].contains("not planned"), "{}", texts[3]);
        assert_eq!(compare(&was[..1], &now[..1]), []);
    }

    #[test]
    fn accepted_changes_carry_their_reason_and_the_rest_keeps_its_own() {
        let was = [golden("same", 1000.0, "1"), golden("slow", 1000.0, "1")];
        let now = [figures("same", 1000.0, "1"), figures("slow", 1200.0, "2")];
        let accepted = accept(&was, &now, "link curve\nmeasured anew");
        assert_eq!(accepted[0].reason, "first, with a comma");
        assert_eq!(accepted[1].reason, "link curve measured anew");
        assert_eq!(compare(&accepted, &now), []);
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        let good = text(&[golden("a", 1.0, "1")]);
        let cases = [
            (String::new(), 1, "expected `device"),
            (good.replace("5000", "many"), 2, "vram_mib `many`"),
            (good.replace("2000.0", "-3"), 2, "prefill_us `-3`"),
            (good.replace("2000.0", "NaN"), 2, "prefill_us `NaN`"),
            (format!("{good}x,y\n"), 3, "2 fields"),
        ];
        for (text, line, problem) in cases {
            let error = parse(&text).unwrap_err();
            assert!(error.line == line && error.problem.contains(problem), "{error}");
        }
    }
}
