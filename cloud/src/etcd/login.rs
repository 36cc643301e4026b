//! The user of this client, and the token that etcd gave for the password.
//!
//! Neither is ever shown.

use std::fmt;

use parking_lot::Mutex;
use tonic::metadata::{Ascii, MetadataValue};

use crate::etcd::api::AuthenticateRequest;

/// A user with a password, and the token of now.
pub struct Login {
    user: String,
    password: String,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl Login {
    /// A user that has no token yet.
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.into(), password: password.into(), token: Mutex::default() }
    }

    /// The request for a token.
    pub(super) fn request(&self) -> AuthenticateRequest {
        AuthenticateRequest { name: self.user.clone(), password: self.password.clone() }
    }

    /// The token of now.
    pub(super) fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.token.lock().clone()
    }

    /// Keeps a token; without one the next request asks for one.
    pub(super) fn keep(&self, token: Option<MetadataValue<Ascii>>) {
        *self.token.lock() = token;
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, ***)", self.user)
    }
}
