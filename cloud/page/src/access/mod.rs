//! Who may see the page: whoever has a token, a session that began with one, or a certificate that
//! the configured CA signed. No browser gets anything before this room has let it in.

pub(crate) mod guard;
mod tokens;
