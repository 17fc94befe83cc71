//! A date and time that the caller brings, and `strftime` of it for templates. Reads no clock itself.

/// A moment in the proleptic Gregorian calendar, in whatever time zone the caller means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// Year.
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 60.
    pub second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl CivilTime {
    /// The moment `seconds` after 1970-01-01 00:00:00, leap seconds not counted.
    pub fn from_unix_seconds(seconds: i64) -> CivilTime {
        let days = seconds.div_euclid(86_400);
        let rest = seconds.rem_euclid(86_400) as u32;
        // Counted from 0000-03-01, years begin after the leap day and eras of 400 years are all alike.
        let days = days + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        CivilTime {
            year: (year_of_era + era * 400 + i64::from(month <= 2)) as i32,
            month: month as u32,
            day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
            hour: rest / 3_600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    /// 0 for Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        const OFFSETS: [i32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = self.year - i32::from(self.month < 3);
        let offset = OFFSETS[self.month.clamp(1, 12) as usize - 1];
        let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        (year + leaps + offset + self.day as i32).rem_euclid(7) as usize
    }

    /// 1 for the first of January.
    fn day_of_year(&self) -> u32 {
        const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        BEFORE[self.month.clamp(1, 12) as usize - 1] + self.day + u32::from(is_leap && self.month > 2)
    }

    /// `format` with its directives replaced, as Python's `strftime` does in the C locale; a `-` after `%` leaves out
    /// leading zeros. Directives that are not known stay as they are.
    pub fn strftime(&self, format: &str) -> String {
        let mut out = String::new();
        let mut symbols = format.chars();
        while let Some(symbol) = symbols.next() {
            if symbol != '%' {
                out.push(symbol);
                continue;
            }
            let mut ahead = symbols.clone();
            let is_bare = ahead.next() == Some('-');
            if is_bare {
                symbols.next();
            }
            let Some(directive) = symbols.next() else {
                out.push('%');
                break;
            };
            match self.directive(directive) {
                Some(text) if is_bare => out.push_str(strip_zeros(&text)),
                Some(text) => out.push_str(&text),
                None => out.extend(['%', directive]),
            }
        }
        out
    }

    fn directive(&self, directive: char) -> Option<String> {
        let month = MONTHS[self.month.clamp(1, 12) as usize - 1];
        let weekday = WEEKDAYS[self.weekday()];
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.into(),
            'B' => month.into(),
            'b' | 'h' => month[..3].into(),
            'A' => weekday.into(),
            'a' => weekday[..3].into(),
            'w' => self.weekday().to_string(),
            'j' => format!("{:03}", self.day_of_year()),
            'F' => self.strftime("%Y-%m-%d"),
            'T' => self.strftime("%H:%M:%S"),
            'R' => self.strftime("%H:%M"),
            'D' => self.strftime("%m/%d/%y"),
            'Z' | 'z' => String::new(),
            'n' => "\n".into(),
            't' => "\t".into(),
            '%' => "%".into(),
            _ => return None,
        })
    }
}

fn strip_zeros(text: &str) -> &str {
    let stripped = text.trim_start_matches(['0', ' ']);
    if stripped.is_empty() { "0" } else { stripped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_moments() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thu 001"),
            (1_721_995_200, "2024-07-26 12:00:00 Fri 208"),
            (951_782_399, "2000-02-28 23:59:59 Mon 059"),
            (951_782_400, "2000-02-29 00:00:00 Tue 060"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon 060"),
            (-1, "1969-12-31 23:59:59 Wed 365"),
        ];
        for (seconds, expected) in cases {
            let time = CivilTime::from_unix_seconds(seconds);
            assert_eq!(time.strftime("%Y-%m-%d %H:%M:%S %a %j"), expected);
        }
    }

    #[test]
    fn directives() {
        let time = CivilTime { year: 2024, month: 7, day: 6, hour: 15, minute: 4, second: 9 };
        let cases = [
            ("%d %b %Y", "06 Jul 2024"),
            ("%-d %B %y", "6 July 24"),
            ("%A %I:%M %p", "Saturday 03:04 PM"),
            ("%e|%-H|100%%", " 6|15|100%"),
            ("%F %T", "2024-07-06 15:04:09"),
            ("%Q %", "%Q %"),
        ];
        for (format, expected) in cases {
            assert_eq!(time.strftime(format), expected);
        }
    }
}
