//! Where drivers announce themselves, and which of them are used.

use std::path::PathBuf;
use std::str::FromStr;

use glob::Pattern;
use proto::names::DriverName;

/// What makes a name a pattern of names.
const WILD: [char; 3] = ['*', '?', '['];

/// How drivers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A directory of ours, in which csi-edge plays the kubelet.
    pub directory: Option<PathBuf>,
    /// A kubelet's directory, in which csi-edge only looks.
    pub kubelet: Option<PathBuf>,
    /// The drivers that may be used.
    pub allow: Vec<AllowedDriver>,
}

impl Settings {
    /// Whether this driver may be used.
    pub fn allows(&self, driver: &DriverName) -> bool {
        self.allow.iter().any(|AllowedDriver(pattern)| pattern.matches(driver.as_str()))
    }
}

/// A driver's name, or a pattern of names with `*`, `?` and `[…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedDriver(Pattern);

impl FromStr for AllowedDriver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(WILD) {
            text.parse::<DriverName>().map_err(|error| error.to_string())?;
        }
        let pattern = Pattern::new(text);
        pattern.map(Self).map_err(|error| format!("{text:?} is no pattern of names: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(patterns: &[&str], driver: &str) -> bool {
        let allow = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let settings = Settings { directory: None, kubelet: None, allow };
        settings.allows(&driver.parse().unwrap())
    }

    #[test]
    fn a_driver_is_allowed_by_its_name_or_a_pattern() {
        for (patterns, driver, is_allowed) in [
            (&["a.example", "b.example"][..], "b.example", true),
            (&["b.example"], "ab.example", false),
            (&["*.example"], "b.example", true),
            (&["*.example"], "b.example.org", false),
            (&[], "b.example", false),
        ] {
            assert_eq!(allows(patterns, driver), is_allowed, "{patterns:?} {driver}");
        }
        for wrong in ["", "a/b", "[a"] {
            assert!(wrong.parse::<AllowedDriver>().is_err(), "{wrong:?}");
        }
    }
}
