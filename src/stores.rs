//! Where offsets and state are kept: Cassandra, or an embedded database for one machine.
//!
//! Both keep the same promises, and one conformance suite holds them to it.

pub mod cassandra;
pub mod existing;
mod format;
pub mod letters;
pub mod local;

use std::path::Path;
use std::sync::Arc;

use strandline_actors::ports::{StateStore, StoreError};

use crate::cassandra::{CassandraError, connect};
use crate::settings::{Settings, StoreKind};
use crate::stores::cassandra::CassandraStore;
use crate::stores::local::LocalStore;

/// The folder of the local store unless the settings name another.
pub const DEFAULT_PATH: &str = "strandline-data";

/// The folder of the local store that the settings name.
pub fn folder(settings: &Settings) -> &Path {
    settings.store.path.as_deref().unwrap_or(Path::new(DEFAULT_PATH))
}

/// Why a store cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no connection to Cassandra.
    #[error(transparent)]
    Connection(#[from] CassandraError),
    /// The store itself cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens the store of a pipeline that the settings name. The runtime that calls this has to outlive the store.
pub async fn open(settings: &Settings, pipeline: &str) -> Result<Arc<dyn StateStore>, OpenError> {
    match settings.store.kind {
        StoreKind::Local => Ok(Arc::new(LocalStore::open(folder(settings), pipeline).await?)),
        StoreKind::Cassandra => {
            let session = connect(&settings.cassandra).await?;
            Ok(Arc::new(CassandraStore::open(session, &settings.cassandra, pipeline).await?))
        }
    }
}
