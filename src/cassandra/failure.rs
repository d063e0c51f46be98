//! Why statements fail: what is refused for good, and what leaves it open whether it took place.

use std::fmt::Write as _;

use scylla::errors::{
    DbError, ExecutionError, NextPageError, NextRowError, PagerExecutionError, PrepareError, RequestAttemptError,
    RequestError,
};

/// What Cassandra says when too few nodes answer to find out who somebody is, or what he may do.
pub(super) const CANNOT_CHECK: &str = "Unable to perform auth";

/// Why a statement failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// No answer, or not enough of one. Whether a write took place is unknown; sending it again may help.
    #[error("{0}")]
    Unknown(String),
    /// Refused for good: a missing table or right, a value that does not fit, a statement that is wrong.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be understood.
    #[error("{0}")]
    Unreadable(String),
}

impl Failure {
    /// Says what was being done.
    pub fn during(self, what: &str) -> Self {
        match self {
            Self::Unknown(reason) => Self::Unknown(format!("{what}: {reason}")),
            Self::Refused(reason) => Self::Refused(format!("{what}: {reason}")),
            Self::Unreadable(reason) => Self::Unreadable(format!("{what}: {reason}")),
        }
    }
}

impl From<RequestAttemptError> for Failure {
    fn from(error: RequestAttemptError) -> Self {
        let text = error.to_string();
        match error {
            // A node that cannot read its own users says so in the words of a refusal.
            RequestAttemptError::DbError(DbError::AuthenticationError | DbError::Unauthorized, said)
                if said.contains(CANNOT_CHECK) =>
            {
                Self::Unknown(text)
            }
            // These the server says before it does anything, and will say again.
            RequestAttemptError::DbError(
                DbError::SyntaxError
                | DbError::Invalid
                | DbError::AlreadyExists { .. }
                | DbError::FunctionFailure { .. }
                | DbError::AuthenticationError
                | DbError::Unauthorized
                | DbError::ConfigError,
                _,
            ) => Self::Refused(text),
            RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => {
                Self::Refused(text)
            }
            // Everything else leaves it open, also errors of a kind that this driver does not know yet: Cassandra 5
            // has some of its own for conditional writes.
            _ => Self::Unknown(text),
        }
    }
}

impl From<ExecutionError> for Failure {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::LastAttemptError(error) => error.into(),
            ExecutionError::PrepareError(error) => error.into(),
            ExecutionError::BadQuery(error) => Self::Refused(with_sources(&error)),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::AllAttemptsFailed { first_attempt } => first_attempt.into(),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        error.into_execution_error().into()
    }
}

impl From<NextPageError> for Failure {
    fn from(error: NextPageError) -> Self {
        match error {
            NextPageError::RequestFailure(error) => error.into(),
            other => Self::Unreadable(with_sources(&other)),
        }
    }
}

impl From<NextRowError> for Failure {
    fn from(error: NextRowError) -> Self {
        match error {
            NextRowError::NextPageError(error) => error.into(),
            other => Self::Unreadable(with_sources(&other)),
        }
    }
}

impl From<PagerExecutionError> for Failure {
    fn from(error: PagerExecutionError) -> Self {
        match error {
            PagerExecutionError::PrepareError(error) => error.into(),
            PagerExecutionError::SerializationError(error) => Self::Refused(with_sources(&error)),
            PagerExecutionError::NextPageError(error) => error.into(),
            other => Self::Unknown(with_sources(&other)),
        }
    }
}

/// An error with everything that lies below it.
pub(super) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            let _ = write!(text, ": {inner_text}");
        }
        source = inner.source();
    }
    // Some of the driver's texts have line breaks.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_the_server_will_say_again_is_final() {
        let refused = |error: DbError| {
            matches!(Failure::from(RequestAttemptError::DbError(error, String::new())), Failure::Refused(_))
        };
        assert!(refused(DbError::SyntaxError));
        assert!(refused(DbError::Invalid));
        assert!(refused(DbError::Unauthorized));
        assert!(!refused(DbError::Overloaded));
        assert!(!refused(DbError::ServerError));
        assert!(!refused(DbError::IsBootstrapping));
        // Cassandra's CAS_WRITE_UNKNOWN, which the driver has no name for.
        assert!(!refused(DbError::Other(0x1700)));
        let timeout = ExecutionError::RequestTimeout(Duration::from_secs(5));
        assert!(matches!(Failure::from(timeout), Failure::Unknown(_)));
    }
}
