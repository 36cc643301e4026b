//! The one implementation of cryptography.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    &PROVIDER
}
