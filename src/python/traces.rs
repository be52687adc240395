//! What the driver's agent has to say: kept until Python passes it on to its own `logging`.
//!
//! The agent's threads never wait for the interpreter, so they do not log there themselves.

use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::mem::take;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, registry};

use super::lock;

/// Lines that are kept: whoever reads them does so by the second.
const KEPT_MAX: usize = 256;

static KEPT: Mutex<Kept> = Mutex::new(Kept { lines: VecDeque::new(), dropped: 0 });

/// Lines, each with whether it is of an error, and how many did not fit in.
struct Kept {
    lines: VecDeque<(bool, String)>,
    dropped: usize,
}

/// Keeps warnings and errors of this crate from now on. Where the process has a subscriber, that one hears them.
pub(super) fn keep_traces() {
    let _ = registry().with(Keeper).try_init();
}

/// What was kept since, and how many lines were not.
pub(super) fn take_traces() -> (Vec<(bool, String)>, usize) {
    let mut kept = lock(&KEPT);
    (kept.lines.drain(..).collect(), take(&mut kept.dropped))
}

struct Keeper;

impl<S: Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        if level > Level::WARN || target.split("::").next() != Some(env!("CARGO_CRATE_NAME")) {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let mut kept = lock(&KEPT);
        if kept.lines.len() < KEPT_MAX {
            kept.lines.push_back((level == Level::ERROR, line.message + &line.fields));
        } else {
            kept.dropped += 1;
        }
    }
}

/// An event in words: its message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;

    use super::*;

    #[test]
    fn warnings_and_errors_are_kept_and_no_more_than_fit_in() {
        with_default(registry().with(Keeper), || {
            tracing::info!("not this");
            tracing::warn!(target: "elsewhere", "nor this");
            tracing::warn!(path = %"/tmp/x", error = "full", "a file was not written");
            tracing::error!(count = 3, "lost");
            (2..KEPT_MAX + 5).for_each(|_| tracing::warn!("again"));
        });
        let (lines, dropped) = take_traces();
        assert_eq!(lines.first(), Some(&(false, "a file was not written, path: /tmp/x, error: full".into())));
        assert_eq!(lines.get(1), Some(&(true, "lost, count: 3".into())));
        assert_eq!((lines.len(), dropped), (KEPT_MAX, 5));
        assert_eq!(take_traces(), (Vec::new(), 0));
    }
}
