//! Which schedules to keep: a small set such that no cell loses more than 1 % against the best schedule known for it.

/// What a cell may lose by its best schedule not being kept.
const TOLERANCE: f64 = 1.01;

/// Most schedules kept per phase and context: a few dozen.
const MOST_KEPT: usize = 48;

/// The kept rows, and for every column the position in `kept` of the best of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Rows kept, ascending.
    pub kept: Vec<usize>,
    /// Per column, an index into `kept`.
    pub cells: Vec<u32>,
}

/// Greedy set cover over `times[row][column]`, then removal of what has become redundant. Rows in `always` are kept.
/// Ties go to the lower row: same input, same choice.
pub fn cover(times: &[Vec<f64>], always: &[usize]) -> Cover {
    let columns = times.first().map_or(0, Vec::len);
    let limit: Vec<f64> =
        (0..columns).map(|c| times.iter().map(|row| row[c]).fold(f64::INFINITY, f64::min) * TOLERANCE).collect();
    let serves = |row: usize, column: usize| times[row][column] <= limit[column];
    let mut kept: Vec<usize> = always.to_vec();
    kept.sort_unstable();
    kept.dedup();
    let fixed = kept.clone();
    let mut open: Vec<usize> = (0..columns).filter(|&c| !kept.iter().any(|&row| serves(row, c))).collect();
    while !open.is_empty() && kept.len() < MOST_KEPT {
        let gain = |row: usize| open.iter().filter(|&&c| serves(row, c)).count();
        let Some(row) = (0..times.len()).max_by(|&a, &b| gain(a).cmp(&gain(b)).then(b.cmp(&a))) else { break };
        kept.push(row);
        open.retain(|&c| !serves(row, c));
    }
    for row in kept.clone().into_iter().filter(|row| !fixed.contains(row)) {
        let needed = (0..columns).any(|c| serves(row, c) && !kept.iter().any(|&k| k != row && serves(k, c)));
        if !needed {
            kept.retain(|&k| k != row);
        }
    }
    kept.sort_unstable();
    let best = |c: usize| (0..kept.len()).min_by(|&a, &b| times[kept[a]][c].total_cmp(&times[kept[b]][c]));
    let cells = (0..columns).map(|c| best(c).unwrap_or(0) as u32).collect();
    Cover { kept, cells }
}

#[cfg(test)]
mod tests {
    use super::cover;
    use proptest::prelude::*;

    #[test]
    fn one_schedule_within_the_tolerance_everywhere_is_enough() {
        let times = vec![vec![100.0, 100.5], vec![99.5, 101.0], vec![300.0, 100.0]];
        let found = cover(&times, &[]);
        assert_eq!((found.kept, found.cells), (vec![0], vec![0, 0]));
    }

    #[test]
    fn a_schedule_is_kept_for_the_one_cell_that_needs_it() {
        let times = vec![vec![100.0, 100.0, 200.0], vec![150.0, 150.0, 100.0]];
        let found = cover(&times, &[]);
        assert_eq!((found.kept, found.cells), (vec![0, 1], vec![0, 0, 1]));
    }

    proptest! {
        #[test]
        fn no_cell_loses_more_than_the_tolerance(
            times in prop::collection::vec(prop::collection::vec(1.0f64..3.0, 12), 1..20), always in 0usize..20
        ) {
            let always = always % times.len();
            let found = cover(&times, &[always]);
            prop_assert!(found.kept.contains(&always));
            for column in 0..12 {
                let best = times.iter().map(|row| row[column]).fold(f64::INFINITY, f64::min);
                let chosen = times[found.kept[found.cells[column] as usize]][column];
                prop_assert!(chosen <= best * 1.01);
            }
        }
    }
}
