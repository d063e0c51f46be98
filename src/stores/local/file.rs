//! The file of a local store: opened once in a process, locked against others, and opened again after the disk failed.
//!
//! Writers that come at the same time share one transaction, and so one wait for the disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redb::{Database, DatabaseError, StorageError, WriteTransaction};
use strandline_actors::ports::{Heartbeat, StoreError};

/// What the database may keep in memory.
const CACHE: usize = 64 << 20;
/// How long the process before may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often a lock that somebody holds is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The files that this process has open. A store that is opened while another of the same pipeline is still being let go
/// of shares its file.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<File>>>> = LazyLock::new(Mutex::default);

/// Why a transaction failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The database says so.
    Database(Box<redb::Error>),
    /// What is stored cannot be right.
    Corrupt(String),
    /// A newer version has stored it.
    Newer(String),
    /// Will not pass by itself.
    Final(String),
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// How the database of a path is opened, and made if that is wanted.
type Opener = Box<dyn Fn(&Path, bool) -> Result<Database, DatabaseError> + Send + Sync>;

/// What a writer does in a transaction.
type Run = Box<dyn FnOnce(&WriteTransaction) -> Result<(), Trouble> + Send>;

/// A write that waits for a transaction, and tells its own outcome to whoever wants it.
struct Write {
    run: Run,
    outcome: Arc<Mutex<Option<Result<(), StoreError>>>>,
}

/// The database file of one pipeline.
pub(super) struct File {
    path: PathBuf,
    opener: Opener,
    /// None after it could not be opened again.
    database: RwLock<Option<Database>>,
    waiting: Mutex<Vec<Write>>,
    /// Held by the one writer that writes for all who wait.
    writing: Mutex<()>,
    /// Kept in memory alone: while the file is locked nobody else can ask, and whoever has let go of it owns nothing.
    heartbeat: Mutex<Option<Heartbeat>>,
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
        prepare: impl FnOnce(&Database) -> Result<(), Trouble>,
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
        let mut open = lock(&OPEN);
        open.retain(|_, file| file.strong_count() > 0);
        let file = match open.get(&path).and_then(Weak::upgrade) {
            Some(file) => file,
            None => {
                let opener = |path: &Path, make: bool| {
                    let mut builder = Database::builder();
                    builder.set_cache_size(CACHE);
                    if make { builder.create(path) } else { builder.open(path) }
                };
                let file = Arc::new(Self::with_opener(path.clone(), Box::new(opener))?);
                open.insert(path, Arc::downgrade(&file));
                file
            }
        };
        drop(open);
        file.with(prepare)?;
        Ok(file)
    }

    fn with_opener(path: PathBuf, opener: Opener) -> Result<Self, StoreError> {
        let database = RwLock::new(Some(open_database(&path, &opener, true)?));
        Ok(Self {
            path,
            opener,
            database,
            waiting: Mutex::default(),
            writing: Mutex::default(),
            heartbeat: Mutex::default(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The heartbeat of whoever works with the file.
    pub(super) fn heartbeat(&self) -> Option<Heartbeat> {
        lock(&self.heartbeat).clone()
    }

    /// Notes a heartbeat, unless a later one is known.
    pub(super) fn beat(&self, heartbeat: &Heartbeat) {
        let mut known = lock(&self.heartbeat);
        let order = |heartbeat: &Heartbeat| (heartbeat.generation, heartbeat.beat);
        if known.as_ref().is_none_or(|known| order(known) <= order(heartbeat)) {
            *known = Some(heartbeat.clone());
        }
    }

    /// Does something with the database. After a fault of the disk the database takes nothing any more; then it is opened
    /// again, for those who try again. Nothing is lost by that: what was acknowledged is on the disk.
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

    /// Runs a write in a transaction, which is on the disk when this returns. The transaction may hold the writes of
    /// others, too, so one that fails for a reason of its own must fail before it has written anything.
    pub(super) fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&WriteTransaction) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, outcome) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
        let answered = Arc::clone(&answer);
        let run = Box::new(move |transaction: &WriteTransaction| {
            *lock(&answered) = Some(job(transaction)?);
            Ok(())
        });
        lock(&self.waiting).push(Write { run, outcome: Arc::clone(&outcome) });
        {
            let _turn = lock(&self.writing);
            // Whoever had the turn before may have written this, too.
            if lock(&outcome).is_none() {
                let writes = std::mem::take(&mut *lock(&self.waiting));
                self.write_all(writes);
            }
        }
        let lost = || StoreError::Unavailable(format!("local store {}: a write broke off", self.path.display()));
        lock(&outcome).take().unwrap_or_else(|| Err(lost()))?;
        lock(&answer).take().ok_or_else(lost)
    }

    fn write_all(&self, writes: Vec<Write>) {
        let (runs, outcomes): (Vec<_>, Vec<_>) = writes.into_iter().map(|write| (write.run, write.outcome)).unzip();
        let mut own_faults = Vec::with_capacity(runs.len());
        let written = self.with(|database| {
            let mut transaction = database.begin_write()?;
            // Opening the file after a crash takes no longer for a large one.
            transaction.set_quick_repair(true);
            for run in runs {
                own_faults.push(match run(&transaction) {
                    Ok(()) => None,
                    Err(Trouble::Database(error)) => return Err(Trouble::Database(error)),
                    Err(trouble) => Some(trouble),
                });
            }
            transaction.commit()?;
            Ok(())
        });
        // Those whose turn did not come before the database failed share its fault.
        let mut own_faults = own_faults.into_iter();
        for outcome in outcomes {
            let own_fault = own_faults.next().flatten().map(|trouble| Err(self.store_error(trouble)));
            *lock(&outcome) = Some(own_fault.unwrap_or_else(|| written.clone()));
        }
    }

    fn open_again(&self) {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: the lock on the file is its own.
        *database = None;
        // One that is gone, such as with the disk that it was on, is not begun anew.
        match open_database(&self.path, &self.opener, false) {
            Ok(opened) => *database = Some(opened),
            Err(error) => tracing::error!("the local store cannot be opened again: {error}"),
        }
    }

    fn store_error(&self, trouble: Trouble) -> StoreError {
        let path = self.path.display();
        match trouble {
            Trouble::Corrupt(what) => StoreError::Corrupt(format!("local store {path}: {what}")),
            Trouble::Newer(what) => StoreError::Newer(format!("local store {path}: {what}")),
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

/// A panic of another writer leaves nothing half done that this code relies on.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a database file, or makes it if that is wanted, and waits a moment for the process before to let go of it.
fn open_database(path: &Path, opener: &Opener, make: bool) -> Result<Database, StoreError> {
    let shown = path.display();
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match opener(path, make) {
            Ok(database) => return Ok(database),
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < patience => std::thread::sleep(LOCK_PAUSE),
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                return Err(StoreError::Fatal(format!(
                    "the local store {shown} is in use by another process, and only one at a time can use it. Stop that \
                     process first; to run another pipeline, give it a folder of its own with STRANDLINE_STORE__PATH. \
                     Several processes can share a store of kind cassandra"
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use redb::backends::FileBackend;
    use redb::{ReadableDatabase, StorageBackend, TableDefinition};

    use super::*;

    const NUMBERS: TableDefinition<'_, u64, u64> = TableDefinition::new("numbers");

    /// A disk that can be told to be full, and that counts how often it was waited for.
    #[derive(Debug)]
    struct Disk {
        file: FileBackend,
        full: Arc<AtomicBool>,
        syncs: Arc<AtomicUsize>,
    }

    impl Disk {
        fn space(&self) -> io::Result<()> {
            if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.file.read(offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.space()?;
            self.file.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.space()?;
            self.syncs.fetch_add(1, Ordering::SeqCst);
            self.file.sync_data()
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.space()?;
            self.file.write(offset, data)
        }
        fn close(&self) -> io::Result<()> {
            self.file.close()
        }
    }

    struct Fixture {
        file: Arc<File>,
        full: Arc<AtomicBool>,
        syncs: Arc<AtomicUsize>,
    }

    impl Fixture {
        fn new() -> Self {
            let (full, syncs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let path = std::env::temp_dir().join(format!("strandline-{}.redb", uuid::Uuid::new_v4()));
            let (is_full, counter) = (Arc::clone(&full), Arc::clone(&syncs));
            let opener = move |path: &Path, make: bool| {
                let mut options = std::fs::File::options();
                let file = options.read(true).write(true).create(make).truncate(false).open(path)?;
                let file = FileBackend::new(file)?;
                let (full, syncs) = (Arc::clone(&is_full), Arc::clone(&counter));
                Database::builder().create_with_backend(Disk { file, full, syncs })
            };
            Self { file: Arc::new(File::with_opener(path, Box::new(opener)).unwrap()), full, syncs }
        }

        fn put(&self, key: u64, value: u64) -> Result<(), StoreError> {
            self.file.write(move |transaction| {
                transaction.open_table(NUMBERS)?.insert(key, value)?;
                Ok(())
            })
        }

        fn get(&self, key: u64) -> Result<Option<u64>, StoreError> {
            self.file
                .with(|database| Ok(database.begin_read()?.open_table(NUMBERS)?.get(key)?.map(|value| value.value())))
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.file.path);
        }
    }

    #[test]
    fn a_full_disk_passes() {
        let fixture = Fixture::new();
        fixture.put(1, 10).unwrap();
        fixture.full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            match fixture.put(2, 20) {
                Err(StoreError::Unavailable(message)) => {
                    assert!(message.contains("Check the disk and the space on it"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
        fixture.full.store(false, Ordering::SeqCst);
        // The one that notices that the disk is back still fails.
        let _ = fixture.put(3, 30);
        fixture.put(4, 40).unwrap();
        assert_eq!(fixture.get(1).unwrap(), Some(10));
        assert_eq!(fixture.get(4).unwrap(), Some(40));
    }

    /// Its disk is gone, and another file must not take its place: a pipeline would begin anew.
    #[test]
    fn a_file_that_is_gone_is_waited_for() {
        let fixture = Fixture::new();
        fixture.put(1, 10).unwrap();
        let elsewhere = fixture.file.path.with_extension("elsewhere");
        std::fs::rename(&fixture.file.path, &elsewhere).unwrap();
        fixture.full.store(true, Ordering::SeqCst);
        assert!(matches!(fixture.put(2, 20), Err(StoreError::Unavailable(_))));
        fixture.full.store(false, Ordering::SeqCst);
        for _ in 0..3 {
            assert!(matches!(fixture.put(2, 20), Err(StoreError::Unavailable(_))));
        }
        assert!(!fixture.file.path.exists());
        std::fs::rename(&elsewhere, &fixture.file.path).unwrap();
        // The one that notices that it is back still fails.
        let _ = fixture.put(3, 30);
        fixture.put(4, 40).unwrap();
        assert_eq!(fixture.get(1).unwrap(), Some(10));
    }

    #[test]
    fn writers_that_wait_share_a_transaction() {
        let fixture = Fixture::new();
        fixture.put(0, 0).unwrap();
        let before = fixture.syncs.load(Ordering::SeqCst);
        fixture.put(0, 1).unwrap();
        let alone = fixture.syncs.load(Ordering::SeqCst) - before;

        let turn = lock(&fixture.file.writing);
        std::thread::scope(|scope| {
            let before = fixture.syncs.load(Ordering::SeqCst);
            let writers: Vec<_> = (1..=20)
                .map(|key| {
                    scope.spawn({
                        let fixture = &fixture;
                        move || fixture.put(key, key)
                    })
                })
                .collect();
            while lock(&fixture.file.waiting).len() < 20 {
                std::thread::yield_now();
            }
            drop(turn);
            for writer in writers {
                writer.join().unwrap().unwrap();
            }
            assert_eq!(fixture.syncs.load(Ordering::SeqCst) - before, alone);
        });
        for key in 1..=20 {
            assert_eq!(fixture.get(key).unwrap(), Some(key));
        }
    }

    #[test]
    fn a_write_that_fails_for_its_own_reason_fails_alone() {
        let fixture = Fixture::new();
        let turn = lock(&fixture.file.writing);
        std::thread::scope(|scope| {
            let good = scope.spawn(|| fixture.put(1, 1));
            let bad =
                scope.spawn(|| fixture.file.write(|_| -> Result<(), Trouble> { Err(Trouble::Final("no".into())) }));
            while lock(&fixture.file.waiting).len() < 2 {
                std::thread::yield_now();
            }
            drop(turn);
            good.join().unwrap().unwrap();
            assert!(matches!(bad.join().unwrap(), Err(StoreError::Fatal(message)) if message.ends_with(": no")));
        });
        assert_eq!(fixture.get(1).unwrap(), Some(1));
    }
}
