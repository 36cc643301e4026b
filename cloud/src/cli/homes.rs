//! `csi-cloud homes rebuild`.

use std::path::Path;

use anyhow::{Context, bail};
use proto::names::DriverName;

use crate::admin::rebuild_homes::{GivenHome, PATH, RebuildHomes};
use crate::cli::output::change;
use crate::config::show_arguments::Reach;

/// Homes in one request.
const CHUNK: usize = 1000;

/// Lets csi-cloud learn homes from a file, or else from the nodes.
///
/// # Errors
/// The file cannot be read, or has a line that is no home; or as for [`change`]. Homes of earlier
/// lines may be recorded then.
pub(super) async fn rebuild(
    driver: Option<DriverName>,
    file: Option<&Path>,
    reach: &Reach,
) -> anyhow::Result<()> {
    let Some(file) = file else {
        return change(reach, PATH, &RebuildHomes { driver, homes: None }).await;
    };
    let mut homes = read(file)?.into_iter().peekable();
    while homes.peek().is_some() {
        let chunk = Some(homes.by_ref().take(CHUNK).collect());
        change(reach, PATH, &RebuildHomes { driver: driver.clone(), homes: chunk }).await?;
    }
    Ok(())
}

/// The homes in a file.
fn read(file: &Path) -> anyhow::Result<Vec<GivenHome>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{} cannot be read", file.display()))?;
    let mut homes = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let home = parse(line).with_context(|| format!("{} line {number}", file.display()))?;
        homes.push(home);
    }
    Ok(homes)
}

fn parse(line: &str) -> anyhow::Result<GivenHome> {
    let parts: Vec<_> = line.splitn(3, ' ').filter(|part| !part.is_empty()).collect();
    let [driver, node, id] = parts[..] else {
        bail!("a line is DRIVER NODE ID, with one space between them; an id may have spaces in it");
    };
    Ok(GivenHome { driver: driver.parse()?, node: node.parse()?, id: id.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_file_names_a_home() {
        let home = parse("d.example n1 an id/with #things").unwrap();
        assert_eq!((home.driver.as_str(), home.node.as_str()), ("d.example", "n1"));
        assert_eq!(home.id, "an id/with #things");
        for bad in
            ["d.example n1", "d.example n1 ", "d.example  n1 x", "d_e n1 x", "d.example N1 x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
