//! The page that asks for a token.

use maud::{DOCTYPE, Markup, html};

use super::frame::{head, mark};

/// Asks for a token; `why` says why the last one did not do.
pub(crate) fn login(why: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("Log in"))
            body .login {
                main #main {
                    h1 { (mark()) "Edge CSI" }
                    form method="post" action="/login" {
                        label for="token" { "Token" }
                        input #token type="password" name="token" required autofocus
                            autocomplete="current-password"
                            aria-describedby=[why.is_some().then_some("why")];
                        @if let Some(why) = why {
                            p #why .refused role="alert" { (why) }
                        }
                        button type="submit" { "Log in" }
                    }
                    p .muted {
                        "The tokens are the lines of the file that csi-page is given as "
                        code { "--tokens" } "."
                    }
                }
            }
        }
    }
}

/// Says that csi-cloud does not answer.
pub(crate) fn away() -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("csi-cloud is away"))
            body .login {
                main #main {
                    h1 { (mark()) "Edge CSI" }
                    p { "csi-cloud does not answer at its socket view. Is it running, and does it "
                        "have the key " code { "view" } "? csi-page's log says more." }
                    p { a href="" { "Try again" } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said_to_everybody() {
        assert!(!login(None).into_string().contains("alert"));
        let shown = login(Some("no")).into_string();
        assert!(shown.contains("role=\"alert\">no<") && shown.contains("aria-describedby"));
    }
}
