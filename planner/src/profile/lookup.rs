//! Times from a profile: exact point, else interpolation between points of the same shape, else the curves, corrected
//! by what the nearest point of the shape says of them, else a refusal that names what to measure. Nothing is guessed
//! outside what was measured.

use super::{Backend, Contention, Curve, Operator, Point, Profile, SizeRate};

/// What a time is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Key<'a> {
    /// Who.
    pub backend: Backend,
    /// What.
    pub operator: Operator,
    /// ggml type of the weights or the cache.
    pub weight_type: &'a str,
    /// Rows of the weight; 0 when the operator has no matrix.
    pub rows: u64,
    /// Columns of the weight.
    pub columns: u64,
    /// Bytes that the curves' rate applies to.
    pub bytes: f64,
    /// Matrices of this shape that are multiplied with, each with `tokens`: experts touched, on average; else 1.
    pub matrices: f64,
    /// Tokens (see [`Operator`]); fractions arise from tokens spread over experts.
    pub tokens: f64,
    /// Team size; 0 for the GPU.
    pub threads: u16,
}

/// A time that the profile does not have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the device profile `{profile}` has no time for {operator:?} {weight_type} on the {backend:?} with {tokens} tokens \
     and {threads} threads"
)]
pub struct NotMeasured {
    /// Name of the profile.
    pub profile: String,
    /// Who.
    pub backend: Backend,
    /// What.
    pub operator: Operator,
    /// ggml type.
    pub weight_type: String,
    /// Tokens.
    pub tokens: f64,
    /// Team size.
    pub threads: u16,
}

impl Profile {
    /// Most tokens of a round that all curves of dense products reach.
    pub fn most_tokens(&self) -> Option<u32> {
        let products = self.curves.iter().filter(|curve| curve.operator == Operator::Matmul);
        products.filter_map(|curve| curve.tokens.last().copied()).min()
    }

    /// Time of an operator in microseconds, without the fixed cost per operator.
    ///
    /// # Errors
    /// When neither points nor curves cover it.
    pub fn time_us(&self, key: &Key<'_>) -> Result<f64, NotMeasured> {
        if key.bytes <= 0.0 {
            return Ok(0.0);
        }
        let time_us = self.point_us(key).or_else(|| self.corrected_us(key)).map(|us| us.max(self.read_us(key)));
        time_us.ok_or_else(|| NotMeasured {
            profile: self.name.clone(),
            backend: key.backend,
            operator: key.operator,
            weight_type: key.weight_type.to_string(),
            tokens: key.tokens,
            threads: key.threads,
        })
    }

    /// What a product's weights take by plain reads of the team, which no kernel beats: curves and points of other
    /// teams may say less when one of them was measured while others had the memory.
    fn read_us(&self, key: &Key<'_>) -> f64 {
        let is_product = matches!(key.operator, Operator::Matmul | Operator::ExpertMatmul);
        let of_team = (key.backend == Backend::Cpu && is_product).then(|| self.memory_of(key.threads)).flatten();
        of_team.map_or(0.0, |team| key.bytes / team.cpu_alone_gb_per_s / 1000.0)
    }

    /// What memory gives a team: as measured, or between two that were.
    pub(super) fn memory_of(&self, threads: u16) -> Option<Contention> {
        let rate = |of: fn(&Contention) -> f64| {
            let known: Vec<(f64, f64)> = self.contention.iter().map(|e| (f64::from(e.threads), of(e))).collect();
            interpolate(&known, f64::from(threads))
        };
        Some(Contention {
            threads,
            cpu_alone_gb_per_s: rate(|entry| entry.cpu_alone_gb_per_s)?,
            cpu_while_link_gb_per_s: rate(|entry| entry.cpu_while_link_gb_per_s)?,
            link_alone_gb_per_s: rate(|entry| entry.link_alone_gb_per_s)?,
            link_while_cpu_gb_per_s: rate(|entry| entry.link_while_cpu_gb_per_s)?,
        })
    }

    /// Measured points of the key's shape and type, any team: (threads, tokens, time of one matrix).
    fn points_of<'a>(&'a self, key: &'a Key<'_>) -> impl Iterator<Item = (u16, f64, f64)> + 'a {
        let same_shape = |point: &&Point| {
            (point.backend, point.operator) == (key.backend, key.operator)
                && (point.rows, point.columns) == (key.rows, key.columns)
                && point.weight_type == key.weight_type
        };
        let of_shape = self.points.iter().filter(|_| key.rows > 0).filter(same_shape);
        of_shape.map(|point| (point.threads, f64::from(point.tokens), point.time_us))
    }

    /// From measured points of this shape and team, when they are exact or bracket the tokens.
    fn point_us(&self, key: &Key<'_>) -> Option<f64> {
        let of_team = self.points_of(key).filter(|point| point.0 == key.threads);
        let mut known: Vec<(f64, f64)> = of_team.map(|(_, tokens, time_us)| (tokens, time_us)).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        interpolate(&known, key.tokens).map(|matrix_us| matrix_us * key.matrices)
    }

    /// From the curves. Where the shape has points, but not of this team or so many tokens, the curves are taken to be
    /// wrong by the factor that they are wrong by at the nearest, in ratios of tokens and of threads: so that teams,
    /// and token counts beyond the last point, compare as the curves say.
    fn corrected_us(&self, key: &Key<'_>) -> Option<f64> {
        let curve_us = self.curve_us(key)?;
        // The GPU's figures are all of 0 threads.
        let apart = |a: u16, b: u16| (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs();
        let distance = |point: &(u16, f64, f64)| (point.1 / key.tokens).ln().abs() + apart(point.0, key.threads);
        let nearest = self.points_of(key).min_by(|a, b| distance(a).total_cmp(&distance(b)).then(b.0.cmp(&a.0)));
        let Some((threads, tokens, point_us)) = nearest else { return Some(curve_us) };
        let there_us = self.curve_us(&Key { threads, tokens, ..key.clone() });
        Some(there_us.map_or(curve_us, |there_us| curve_us * point_us * key.matrices / there_us))
    }

    /// From the curves of the operator and type.
    fn curve_us(&self, key: &Key<'_>) -> Option<f64> {
        let same_kind = |curve: &&Curve| {
            (curve.backend, curve.operator) == (key.backend, key.operator) && curve.weight_type == key.weight_type
        };
        let mut known: Vec<(f64, f64)> = Vec::new();
        for curve in self.curves.iter().filter(same_kind) {
            let rates: Vec<(f64, f64)> =
                curve.tokens.iter().zip(&curve.gb_per_s).map(|(&tokens, &rate)| (f64::from(tokens), rate)).collect();
            let gb_per_s = interpolate(&rates, key.tokens)?;
            // Bytes over 10⁹ bytes per second is nanoseconds.
            let time_us = key.bytes / gb_per_s / 1000.0;
            if curve.threads == key.threads {
                return Some(time_us);
            }
            known.push((f64::from(curve.threads), time_us));
        }
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        if key.backend == Backend::Gpu { None } else { interpolate(&known, f64::from(key.threads)) }
    }
}

/// Value at `x` between known (x, y), linear in the logarithms; `None` outside.
fn interpolate(known: &[(f64, f64)], x: f64) -> Option<f64> {
    let above = known.iter().position(|&(known_x, _)| known_x >= x)?;
    let (high_x, high_y) = known[above];
    if high_x == x {
        return Some(high_y);
    }
    let (low_x, low_y) = *known.get(above.checked_sub(1)?)?;
    let share = (x / low_x).ln() / (high_x / low_x).ln();
    Some((low_y.ln() + share * (high_y / low_y).ln()).exp())
}

/// Microseconds to move `bytes`: between measured sizes by interpolation, below the smallest its time, above the
/// largest its rate.
pub(crate) fn transfer_us(sizes: &[SizeRate], bytes: u64) -> f64 {
    if bytes == 0 {
        return 0.0;
    }
    let time = |size: &SizeRate| (size.size_kib as f64 * 1024.0) / size.gb_per_s / 1000.0;
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return f64::INFINITY };
    let bytes = bytes as f64;
    let known: Vec<(f64, f64)> = sizes.iter().map(|size| (size.size_kib as f64 * 1024.0, time(size))).collect();
    if bytes <= known[0].0 {
        return time(first);
    }
    interpolate(&known, bytes).unwrap_or(bytes / last.gb_per_s / 1000.0)
}
