//! Values that are never shown: not in logs, not in errors, not in any form of the settings.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands in place of a secret.
pub(crate) const HIDDEN: &str = "***";

/// A password. Only [`Secret::expose`] gives it away.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// For a driver that takes the text itself.
impl From<&Secret> for String {
    fn from(secret: &Secret) -> Self {
        secret.0.clone()
    }
}

/// Whether a librdkafka property holds a secret. Certificates in place are no secrets, but their keys are.
pub(crate) fn is_secret(property: &str) -> bool {
    property.contains("password")
        || property.contains("secret")
        || property == "ssl.key.pem"
        // Holds a token's claims and, with some handlers, credentials.
        || property == "sasl.oauthbearer.config"
}
