//! The file of a local store: opened once in a process, locked against others, and opened again after the disk failed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redb::{Database, DatabaseError, Durability, StorageError, WriteTransaction};
use strandline_actors::ports::StoreError;

/// What the database may keep in memory.
const CACHE: usize = 64 << 20;
/// How long the process before may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often a lock that somebody holds is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The files that this process has open. A store that is opened while another of the same pipeline is still being let go
/// of shares its file.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<File>>>> = LazyLock::new(Mutex::default);

/// When a transaction has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    /// Before the call returns.
    Yes,
    /// Together with the next one that has to be.
    WithTheNext,
}

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The database says so.
    Database(Box<redb::Error>),
    /// What is stored cannot be right.
    Corrupt(String),
    /// Will not pass by itself.
    Final(String),
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// The database file of one pipeline.
pub(super) struct File {
    path: PathBuf,
    /// None after it could not be opened again.
    database: RwLock<Option<Database>>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

impl File {
    /// Opens the file and prepares it.
    pub(super) fn open(
        path: &Path,
        prepare: impl Fn(&Database) -> Result<(), Trouble>,
    ) -> Result<Arc<Self>, StoreError> {
        let unusable = |error: std::io::Error| {
            StoreError::Fatal(format!(
                "the folder of the local store, {}, cannot be used: {error}. Choose another with STRANDLINE_STORE__PATH",
                path.parent().unwrap_or(path).display()
            ))
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(unusable)?;
        // Two ways to write one path must not lead to two locks on one file.
        let path = match path.file_name() {
            Some(name) => folder.canonicalize().map_err(unusable)?.join(name),
            None => return Err(StoreError::Fatal(format!("{} is not a file", path.display()))),
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, file| file.strong_count() > 0);
        let file = match open.get(&path).and_then(Weak::upgrade) {
            Some(file) => file,
            None => {
                let file = Arc::new(Self { database: RwLock::new(Some(open_database(&path)?)), path: path.clone() });
                open.insert(path, Arc::downgrade(&file));
                file
            }
        };
        drop(open);
        file.with(prepare)?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Does something with the database. After a fault of the disk the database takes nothing any more; then it is opened
    /// again, for those who try again.
    pub(super) fn with<T>(&self, job: impl FnOnce(&Database) -> Result<T, Trouble>) -> Result<T, StoreError> {
        let done = {
            let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
            match &*database {
                Some(database) => job(database),
                None => Err(Trouble::from(StorageError::PreviousIo)),
            }
        };
        done.map_err(|trouble| {
            if let Trouble::Database(error) = &trouble
                && matches!(**error, redb::Error::PreviousIo | redb::Error::Io(_) | redb::Error::DatabaseClosed)
            {
                self.open_again();
            }
            self.store_error(trouble)
        })
    }

    /// Runs a write transaction.
    pub(super) fn write<T>(
        &self,
        durable: Durable,
        job: impl FnOnce(&WriteTransaction) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            match durable {
                // Opening the file after a crash takes no longer for a large one.
                Durable::Yes => transaction.set_quick_repair(true),
                Durable::WithTheNext => transaction.set_durability(Durability::None)?,
            }
            let answer = job(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        })
    }

    fn open_again(&self) {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: the lock on the file is its own.
        *database = None;
        match open_database(&self.path) {
            Ok(opened) => *database = Some(opened),
            Err(error) => tracing::error!("the local store cannot be opened again: {error}"),
        }
    }

    fn store_error(&self, trouble: Trouble) -> StoreError {
        let path = self.path.display();
        match trouble {
            Trouble::Corrupt(what) => StoreError::Corrupt(format!("local store {path}: {what}")),
            Trouble::Final(what) => StoreError::Fatal(format!("local store {path}: {what}")),
            Trouble::Database(error) => match *error {
                redb::Error::Corrupted(what) => {
                    StoreError::Corrupt(format!("local store {path}: the file is damaged: {what}"))
                }
                error @ (redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
                    StoreError::Unavailable(format!("local store {path}: {error}. Check the disk and the space on it"))
                }
                error => StoreError::Fatal(format!("local store {path}: {error}")),
            },
        }
    }
}

/// Opens or creates a database file, and waits a moment for the process before to let go of it.
fn open_database(path: &Path) -> Result<Database, StoreError> {
    let shown = path.display();
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match Database::builder().set_cache_size(CACHE).create(path) {
            Ok(database) => return Ok(database),
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < patience => std::thread::sleep(LOCK_PAUSE),
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                return Err(StoreError::Fatal(format!(
                    "the local store {shown} is in use by another process. Stop that process, or give this one a folder \
                     of its own with STRANDLINE_STORE__PATH; several processes can share a store of kind cassandra"
                )));
            }
            Err(DatabaseError::Storage(StorageError::Corrupted(what))) => {
                return Err(StoreError::Corrupt(format!("the local store {shown} is damaged: {what}")));
            }
            Err(DatabaseError::Storage(StorageError::Io(error))) => {
                return Err(StoreError::Fatal(format!(
                    "the local store {shown} cannot be opened: {error}. Check the file, or choose another folder with \
                     STRANDLINE_STORE__PATH"
                )));
            }
            Err(error) => return Err(StoreError::Fatal(format!("the local store {shown} cannot be opened: {error}"))),
        }
    }
}
