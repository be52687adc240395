//! Lines that are no rows, kept in a file for whoever wants to look at them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::source::Rejected;

/// Name of the file in the folder of the log.
const FILE: &str = "aside.jsonl";
/// The file grows no further than this: it is for looking at, and the counters go on.
const BYTES_MAX: u64 = 64 << 20;

/// One line of the file.
#[derive(Serialize)]
struct Line<'a> {
    /// Microseconds since 1970.
    received: i64,
    why: &'a str,
    /// Bytes of the line.
    len: u64,
    /// Its beginning, in hexadecimal digits.
    head: String,
}

/// The file.
#[derive(Debug)]
pub(super) struct MalformedFile {
    file: File,
    written: u64,
}

impl MalformedFile {
    /// Opens the file, behind what it holds.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| Error::io(format!("opening {}", path.display()), &error))?;
        let written = file.metadata().map_or(0, |meta| meta.len());
        Ok(Self { file, written })
    }

    /// Writes lines; a failure is said in the trace and stops nothing.
    pub(super) fn keep(&mut self, rejected: &[Rejected], received: i64) {
        for line in rejected {
            let head = line.head.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = Line { received, why: line.why.name(), len: line.len, head };
            let Ok(mut text) = serde_json::to_string(&line) else { continue };
            text.push('\n');
            if self.written + text.len() as u64 > BYTES_MAX {
                return;
            }
            self.written += text.len() as u64;
            if let Err(error) = self.file.write_all(text.as_bytes()) {
                tracing::warn!(%error, "a malformed line could not be kept");
            }
        }
    }
}
