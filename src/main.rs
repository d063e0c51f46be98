//! The command line.

use std::process::ExitCode;

use strandline::service;
use strandline::settings::{files, load};
use strandline_actors::run::Outcome;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let loaded = match files(&[]).and_then(|files| load(&files, std::env::vars_os())) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let settings = loaded.settings;
    let opened = match io.block_on(service::open(&settings)) {
        Ok(opened) => opened,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = service::run_to_end(opened.pipeline, settings.threads(), |handle| {
        io.spawn(async move {
            let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("signal");
            term.recv().await;
            handle.stop();
        });
    });
    match outcome {
        Outcome::Stopped => ExitCode::SUCCESS,
        Outcome::SteppedDown(why) => {
            eprintln!("{why}");
            ExitCode::from(75)
        }
        Outcome::Failed(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
