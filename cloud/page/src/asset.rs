//! The files of the page. They are in the program, and a browser may keep them: their address
//! changes with their content.

use std::sync::LazyLock;

use crate::access::Hash;

/// A file.
pub(crate) struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// The style sheet.
pub(crate) static STYLE: LazyLock<Versioned> = LazyLock::new(|| {
    Versioned::of(Asset {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        content: include_str!("page.css"),
    })
});

/// The script.
pub(crate) static SCRIPT: LazyLock<Versioned> = LazyLock::new(|| {
    Versioned::of(Asset {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        content: include_str!("page.js"),
    })
});

/// The icon.
pub(crate) static ICON: LazyLock<Versioned> = LazyLock::new(|| {
    Versioned::of(Asset {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        content: include_str!("icon.svg"),
    })
});

/// A file with its version.
pub(crate) struct Versioned {
    asset: Asset,
    href: String,
}

impl Versioned {
    fn of(asset: Asset) -> Self {
        let hash = Hash::of(asset.content.as_bytes());
        let version: String =
            hash.bytes().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let href = format!("{}?v={version}", asset.path);
        Self { asset, href }
    }

    /// Its address in pages.
    pub(crate) fn href(&self) -> &str {
        &self.href
    }

    /// What a browser gets: its type and its content.
    pub(crate) fn content(&self) -> (&'static str, &'static str) {
        (self.asset.content_type, self.asset.content)
    }
}

/// The file at a path.
pub(crate) fn at(path: &str) -> Option<&'static Versioned> {
    [&*STYLE, &*SCRIPT, &*ICON].into_iter().find(|of| of.asset.path == path)
}
