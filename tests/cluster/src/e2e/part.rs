//! Divides the rows among several stands, which may run at the same time.

use std::str::FromStr;

use anyhow::{Context, ensure};

use super::Row;

/// One of several equal parts: the second of three is `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which one, from 1 to `count`.
    number: usize,
    /// How many there are.
    count: usize,
}

impl Part {
    /// The rows of this part, in their order. Long rows stand beside each other in the list, so a
    /// part takes every `count`-th of them.
    pub fn of(self, rows: Vec<&'static Row>) -> Vec<&'static Row> {
        rows.into_iter().skip(self.number - 1).step_by(self.count).collect()
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (number, count) = text.split_once('/').context("write a part as 1/2")?;
        let number = number.parse().context("the part before / is no number")?;
        let count = count.parse().context("the count after / is no number")?;
        ensure!((1..=count).contains(&number), "there is no part {number} of {count}");
        Ok(Self { number, count })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROWS;
    use super::*;

    #[test]
    fn the_parts_are_all_rows_and_share_none() {
        for count in 1..5 {
            let parts: Vec<_> = (1..=count)
                .flat_map(|number| Part { number, count }.of(ROWS.iter().collect()))
                .map(|row| row.name)
                .collect();
            let all: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            assert_eq!(parts.len(), all.len());
            assert!(all.iter().all(|name| parts.contains(name)));
        }
    }

    #[test]
    fn a_part_is_written_as_number_and_count() {
        assert_eq!("2/3".parse::<Part>().unwrap(), Part { number: 2, count: 3 });
        for wrong in ["", "1", "0/2", "3/2", "1/0", "one/2", "1/two", "-1/2"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }
}
