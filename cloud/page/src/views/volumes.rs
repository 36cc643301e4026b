//! Volumes in trouble.

use maud::{Markup, html};
use proto::admin::view::Troubled;
use proto::host::plain;

use super::link;
use super::time::number;

/// Volumes that are shown.
const MOST: usize = 500;
/// The states that can be chosen.
const STATES: [&str; 3] = ["absent", "claimed", "lost"];

/// The list, of one state or of all.
pub(crate) fn volumes(found: &[Troubled], state: Option<&str>) -> Markup {
    let is_wanted = |of: &&Troubled| state.is_none_or(|state| of.state == state);
    let wanted: Vec<_> = found.iter().filter(is_wanted).collect();
    html! {
        h1 { "Volumes in trouble" }
        nav aria-label="Volumes by state" {
            ul .filters {
                li {
                    a href="/volumes" aria-current=[state.is_none().then_some("true")] { "all" }
                }
                @for word in STATES {
                    li {
                        a href={"/volumes?state=" (word)}
                            aria-current=[(state == Some(word)).then_some("true")] { (word) }
                    }
                }
            }
        }
        p .muted {
            "Absent: its node's driver no longer lists it. Claimed: several nodes say that they "
            "have it. Lost: its node was removed."
        }
        @if wanted.is_empty() {
            p .fine { "No volume is known to be in trouble. Search for any other by its id." }
        } @else {
            (table(&wanted))
        }
        @if wanted.len() > MOST {
            p .muted { "The first " (number(MOST)) " of " (number(wanted.len())) "." }
        }
    }
}

fn table(volumes: &[&Troubled]) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Volumes" {
            table {
                thead {
                    tr {
                        th scope="col" { "volume or snapshot" }
                        th scope="col" { "state" }
                        th scope="col" { "node" }
                        th scope="col" { "driver" }
                    }
                }
                tbody { @for volume in volumes.iter().take(MOST) { (row(volume)) } }
            }
        }
    }
}

fn row(volume: &Troubled) -> Markup {
    let Troubled { driver, is_volume, id, node, state } = volume;
    let label = link::short(&plain(id));
    html! {
        tr {
            th scope="row" {
                @if *is_volume {
                    a href=(link::volume(driver, id)) { (label) }
                } @else {
                    (label)
                }
            }
            td { (state) }
            td { a href=(link::node(node)) { (node) } }
            td { (driver) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_of_the_wanted_state_are_listed() {
        let of = |id: &str, state: &str| Troubled {
            driver: "d.example".parse().unwrap(),
            is_volume: true,
            id: id.into(),
            node: "n1".parse().unwrap(),
            state: state.into(),
        };
        let found = [of("<v>", "lost"), of("w", "absent")];
        let rows = |state| volumes(&found, state).into_string().matches("scope=\"row\"").count();
        assert_eq!([rows(None), rows(Some("lost")), rows(Some("claimed"))], [2, 1, 0]);
        let shown = volumes(&found, Some("lost")).into_string();
        assert!(shown.contains("/volume/d.example/%3Cv%3E\">&lt;v&gt;<"), "{shown}");
    }
}
