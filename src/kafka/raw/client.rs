//! Clients: made of properties, polled, and destroyed last.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rdkafka_sys::bindings as rd;

use super::{Code, text};

/// Why a client could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kafka) enum Refused {
    /// librdkafka has no such property.
    Unknown { name: String },
    /// It has, but not with that value.
    Invalid { name: String, text: String },
    /// The properties do not go together, or a file that they name cannot be used.
    Client { text: String },
}

/// Who is told what librdkafka has to say. Called from librdkafka's own threads while it holds locks: must be quick and
/// must not call librdkafka.
pub(in crate::kafka) trait Listener: Send + Sync + 'static {
    /// A line of librdkafka's log, under syslog's levels.
    fn log(&self, level: i32, facility: &str, text: &str);
    /// A fault of a broker or of the client as a whole; told by [`Client::poll`].
    fn error(&self, code: Code, text: &str);
}

/// The names of all properties that this build of librdkafka knows.
pub(in crate::kafka) fn property_names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: both objects are made, read and destroyed here; a dump is `count` strings, names and values by turns, and
    // is given back with its count.
    unsafe {
        let conf = rd::rd_kafka_conf_new();
        let topic_conf = rd::rd_kafka_topic_conf_new();
        let mut count = 0;
        let dump = rd::rd_kafka_conf_dump(conf, &mut count);
        names.extend((0..count).step_by(2).map(|i| text(*dump.add(i))));
        rd::rd_kafka_conf_dump_free(dump, count);
        let dump = rd::rd_kafka_topic_conf_dump(topic_conf, &mut count);
        names.extend((0..count).step_by(2).map(|i| text(*dump.add(i))));
        rd::rd_kafka_conf_dump_free(dump, count);
        rd::rd_kafka_topic_conf_destroy(topic_conf);
        rd::rd_kafka_conf_destroy(conf);
    }
    names
}

/// A client of one cluster: its connections, its threads, its main queue.
pub(in crate::kafka) struct Client {
    pub(super) rk: NonNull<rd::rd_kafka_t>,
    /// Given to librdkafka as its opaque pointer, and taken back when the client is destroyed.
    listener: NonNull<Arc<dyn Listener>>,
    /// How many questions went unanswered: each goes to another broker than the one before.
    pub(super) unanswered: AtomicUsize,
    /// The brokers that are asked first.
    servers: CString,
}

// SAFETY: librdkafka's handle may be used from any thread, and the listener behind it is `Send + Sync`.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Makes a client of these properties. Starts its threads, but waits for no broker.
    pub(in crate::kafka) fn new(
        properties: &BTreeMap<String, String>,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, Refused> {
        let mut reason = [0 as c_char; 512];
        let servers = properties.get("bootstrap.servers").cloned().unwrap_or_default();
        let servers = CString::new(servers).unwrap_or_default();
        // SAFETY: `conf` is destroyed on every way out but the one on which `rd_kafka_new` takes it over. The listener's
        // pointer comes from a box and is taken back either here, when no client was made, or in `drop`.
        unsafe {
            let conf = rd::rd_kafka_conf_new();
            for (name, value) in properties {
                let (Ok(c_name), Ok(c_value)) = (CString::new(name.as_str()), CString::new(value.as_str())) else {
                    rd::rd_kafka_conf_destroy(conf);
                    return Err(Refused::Invalid { name: name.clone(), text: "contains a zero byte".into() });
                };
                let answer =
                    rd::rd_kafka_conf_set(conf, c_name.as_ptr(), c_value.as_ptr(), reason.as_mut_ptr(), reason.len());
                if answer != rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
                    rd::rd_kafka_conf_destroy(conf);
                    let name = name.clone();
                    return Err(match answer {
                        rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_UNKNOWN => Refused::Unknown { name },
                        _ => Refused::Invalid { name, text: text(reason.as_ptr()) },
                    });
                }
            }
            let listener = NonNull::from(Box::leak(Box::new(listener)));
            rd::rd_kafka_conf_set_opaque(conf, listener.as_ptr().cast());
            rd::rd_kafka_conf_set_log_cb(conf, Some(on_log));
            rd::rd_kafka_conf_set_error_cb(conf, Some(on_error));
            let rk = rd::rd_kafka_new(rd::rd_kafka_type_t::RD_KAFKA_CONSUMER, conf, reason.as_mut_ptr(), reason.len());
            match NonNull::new(rk) {
                Some(rk) => Ok(Self { rk, listener, unanswered: AtomicUsize::new(0), servers }),
                None => {
                    rd::rd_kafka_conf_destroy(conf);
                    drop(Box::from_raw(listener.as_ptr()));
                    Err(Refused::Client { text: text(reason.as_ptr()) })
                }
            }
        }
    }

    /// Serves the main queue: errors, statistics, renewal of tokens. Never waits.
    pub(in crate::kafka) fn poll(&self) {
        // SAFETY: the handle is alive.
        unsafe { rd::rd_kafka_poll(self.rk.as_ptr(), 0) };
    }

    /// Has the brokers that are asked first be asked again. Those that the client knows are left as they are.
    pub(in crate::kafka) fn ask_servers_again(&self) {
        // SAFETY: the handle is alive, and librdkafka copies the text.
        unsafe { rd::rd_kafka_brokers_add(self.rk.as_ptr(), self.servers.as_ptr()) };
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: topics, queues and records hold the client, so none is left. Once destroyed, librdkafka calls the
        // listener no more.
        unsafe {
            rd::rd_kafka_destroy(self.rk.as_ptr());
            drop(Box::from_raw(self.listener.as_ptr()));
        }
    }
}

/// # Safety
/// Called by librdkafka only, with the client that carries our opaque pointer.
unsafe extern "C" fn on_log(rk: *const rd::rd_kafka_t, level: c_int, facility: *const c_char, line: *const c_char) {
    // SAFETY: the opaque pointer is the listener for as long as the client lives; the strings live across the call.
    unsafe {
        let listener = rd::rd_kafka_opaque(rk).cast::<Arc<dyn Listener>>();
        if let Some(listener) = listener.as_ref() {
            listener.log(level, &text(facility), &text(line));
        }
    }
}

/// # Safety
/// Called by librdkafka only, with our opaque pointer.
unsafe extern "C" fn on_error(_: *mut rd::rd_kafka_t, code: c_int, reason: *const c_char, opaque: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        if let Some(listener) = opaque.cast::<Arc<dyn Listener>>().as_ref() {
            listener.error(Code(code), &text(reason));
        }
    }
}
