//! What every page must be: labelled, walked by keyboard, and no wider than a phone.

use anyhow::{Context, ensure};
use serde_json::Value;

use super::browser::{Browser, ENTER, TAB};

/// Finds what somebody without eyes or a mouse would miss.
const LABELS: &str = r#"
const wrong = [];
const all = (selector) => [...document.querySelectorAll(selector)];
const say = (what, element) => wrong.push(what + ": " + element.outerHTML.slice(0, 120));
if (!document.documentElement.lang) wrong.push("no language");
if (!document.title.trim()) wrong.push("no title");
if (all("h1").length !== 1) wrong.push(all("h1").length + " headings of the first level");
for (const landmark of ["header", "nav", "main"])
  if (all(landmark).length < 1) wrong.push("no " + landmark);
for (const field of all("input:not([type=hidden]), select"))
  if (!field.labels.length && !field.getAttribute("aria-label")) say("no label", field);
for (const link of all("a, button"))
  if (!link.textContent.trim() && !link.getAttribute("aria-label")) say("no words", link);
for (const svg of all("svg:not([aria-hidden=true])"))
  if (svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label")) say("no words", svg);
for (const head of all("th")) if (!head.scope) say("no scope", head);
for (const table of all("table")) if (!table.querySelector("th")) say("no headers", table);
for (const region of all("[role=region]"))
  if (!region.getAttribute("aria-label")) say("no label", region);
const ids = all("[id]").map((element) => element.id);
if (new Set(ids).size !== ids.length) wrong.push("an id twice: " + ids);
for (const named of all("[aria-labelledby]"))
  if (!document.getElementById(named.getAttribute("aria-labelledby"))) say("no such label", named);
if (all("[aria-live=polite]").length !== 1) wrong.push("no polite region");
return wrong;
"#;

/// What the focus is on, and whether it can be seen.
const FOCUS: &str = r#"
const at = document.activeElement;
if (!at || at === document.body) return null;
const style = getComputedStyle(at);
const box = at.getBoundingClientRect();
return {
  what: at.outerHTML.slice(0, 120),
  id: at.id,
  outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  visible: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight,
};
"#;

/// The most steps of a walk.
const STEPS: usize = 40;

/// Looks for what is not labelled.
pub(super) async fn labels(browser: &Browser, page: &str) -> anyhow::Result<()> {
    let wrong = browser.run(LABELS).await?;
    ensure!(wrong.as_array().is_some_and(Vec::is_empty), "{page}: {wrong:#}");
    Ok(())
}

/// Looks whether the page is wider than its window.
pub(super) async fn width(browser: &Browser, page: &str) -> anyhow::Result<()> {
    let script = r#"
        const wide = [...document.querySelectorAll("main *")].filter((element) =>
          element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll"));
        return { width: document.documentElement.scrollWidth, window: innerWidth,
          wide: wide.slice(0, 3).map((element) => element.outerHTML.slice(0, 200)) };"#;
    let seen = browser.run(script).await?;
    let fits = seen["width"].as_u64() <= seen["window"].as_u64();
    ensure!(fits, "{page} scrolls sideways on a phone: {seen:#}");
    Ok(())
}

/// Walks through the page by keyboard.
pub(super) async fn keyboard(browser: &Browser, page: &str) -> anyhow::Result<()> {
    browser.run("document.activeElement.blur(); scrollTo(0, 0);").await?;
    let mut walked = 0;
    for step in 0..STEPS {
        browser.press(TAB).await?;
        let focus = browser.run(FOCUS).await?;
        if focus.is_null() {
            break;
        }
        walked += 1;
        let is_seen = focus["outlined"] == true && focus["visible"] == true;
        ensure!(is_seen, "{page}: the focus is not to be seen: {focus:#}");
        let is_skip = focus["what"].as_str().is_some_and(|what| what.contains("#main"));
        ensure!(step > 0 || is_skip, "{page}: the first stop is no way past the head: {focus:#}");
    }
    ensure!(walked > 8, "{page}: the keyboard reaches {walked} places only");
    Ok(())
}

/// Follows the way past the head.
pub(super) async fn skip(browser: &Browser) -> anyhow::Result<()> {
    browser.run("document.activeElement.blur(); scrollTo(0, 0);").await?;
    browser.press(TAB).await?;
    browser.press(ENTER).await?;
    let focus = browser.run("return document.activeElement.id").await?;
    ensure!(focus == "main", "the way past the head leads to {focus}");
    Ok(())
}

/// Looks for errors in the console.
pub(super) async fn console(browser: &Browser) -> anyhow::Result<()> {
    let errors = browser.errors().await?;
    ensure!(errors.is_empty(), "errors in the console: {errors:#?}");
    Ok(())
}

/// A text without its ages, which go on.
pub(super) fn ageless(text: &str) -> String {
    let is_age = |word: &str| {
        let word = word.trim_end_matches([',', ';', '.']);
        word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h', 'd'])
    };
    let words = text.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// A number of a value.
pub(super) fn number(value: &Value, what: &str) -> anyhow::Result<f64> {
    value.as_f64().with_context(|| format!("{what} is {value}"))
}
