//! Durations as operators write them.

use std::time::Duration;

/// Reads a whole number and its unit, for example `90s`, `30m`, `12h` or `7d`.
///
/// # Errors
/// It is not written so, or is too long to count in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write 90s, 30m, 12h or 7d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.parse().ok().and_then(|number: u64| number.checked_mul(seconds));
    Ok(Duration::from_secs(seconds.ok_or_else(wrong)?))
}
