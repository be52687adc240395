//! Reading lines from a server over TCP, as Spark's own `socket` source does, into a log.
//!
//! With `acknowledge` the sender is told, in lines of their own, how many lines are safe: on connecting, and
//! whenever there are more. A sender that goes on behind that number after a failure of either side has each
//! line in the log once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, StructArray};
use arrow_schema::{DataType, Field};

use super::counters::add;
use super::log::{SourceLog, now_micros};
use super::malformed::MalformedFile;
use crate::error::{Error, Result};
use crate::source::{Lines, Splitter};

/// A block is closed at this many bytes of lines.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// How long lines may wait for more of them.
const LINGER: Duration = Duration::from_millis(2);
/// How often a silent connection is looked after.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// How long a sender may take to read acknowledgements before its connection is given up.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a receiver of lines.
#[derive(Debug, Clone)]
pub struct SocketSettings {
    /// Host and port to connect to.
    pub addr: String,
    /// Longest line, in bytes.
    pub line_max: usize,
    /// Whether bytes that are no UTF-8 are replaced; else the line is no row.
    pub repair: bool,
    /// Whether lines that are no rows are kept in a file.
    pub keep_malformed: bool,
    /// Whether the sender is told how many lines are safe.
    pub acknowledge: bool,
    /// Longest pause between two attempts to connect.
    pub back_off_max: Duration,
}

/// Receives until the log is stopped or `stop` says so.
///
/// # Errors
/// What keeps the log from taking in lines. Failures of the connection are no errors: it is made again.
pub fn receive_socket(log: &Arc<SourceLog>, settings: &SocketSettings, stop: &AtomicBool) -> Result<()> {
    let mut malformed = if settings.keep_malformed { Some(MalformedFile::open(log.folder())?) } else { None };
    let mut back_off = BACK_OFF_MIN;
    while !stop.load(Ordering::Relaxed) && !log.is_stopped() {
        match connect(&settings.addr) {
            Ok(stream) => {
                add(&log.counters().connections, 1);
                tracing::info!(addr = %settings.addr, taken = log.taken(), "connected to the sender");
                let begun = Instant::now();
                let ended = Receiver { log, settings, stop, malformed: malformed.as_mut() }.run(&stream);
                let _closed = stream.shutdown(Shutdown::Both);
                ended?;
                if begun.elapsed() > settings.back_off_max {
                    back_off = BACK_OFF_MIN;
                }
            }
            Err(error) => tracing::info!(addr = %settings.addr, %error, "the sender cannot be reached"),
        }
        add(&log.counters().broken, 1);
        pause(back_off, stop);
        back_off = (back_off * 2).min(settings.back_off_max);
    }
    log.failure().map_or(Ok(()), Err)
}

fn pause(length: Duration, stop: &AtomicBool) {
    let until = Instant::now() + length;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        sleep(LOOK_PERIOD.min(until.saturating_duration_since(Instant::now())));
    }
}

fn connect(addr: &str) -> std::io::Result<TcpStream> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for addr in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// One connection.
struct Receiver<'a> {
    log: &'a Arc<SourceLog>,
    settings: &'a SocketSettings,
    stop: &'a AtomicBool,
    malformed: Option<&'a mut MalformedFile>,
}

impl Receiver<'_> {
    /// Receives until the connection ends; an error is one of the log.
    fn run(&mut self, stream: &TcpStream) -> Result<()> {
        let ended = AtomicBool::new(false);
        let (log, acknowledge) = (Arc::clone(self.log), self.settings.acknowledge);
        // What the connection before brought counts in the number that the sender is greeted with.
        log.flush()?;
        // A sender that hears from a receiver which has lost the log would go back to where that one was.
        log.verify()?;
        scope(|threads| {
            if acknowledge {
                threads.spawn(|| acknowledge_lines(&log, stream, &ended));
            }
            let received = self.receive(stream);
            ended.store(true, Ordering::Relaxed);
            received
        })
    }

    fn receive(&mut self, mut stream: &TcpStream) -> Result<()> {
        let mut splitter = Splitter::new(self.settings.line_max, self.settings.repair);
        let mut buffer = vec![0; READ_BYTES];
        let mut since = Instant::now();
        while !self.stop.load(Ordering::Relaxed) && !self.log.is_stopped() {
            let timeout = if splitter.is_ready() { LINGER } else { LOOK_PERIOD };
            let read = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.read(&mut buffer));
            match read {
                Ok(0) => {
                    // Without acknowledgements nobody would send the last line again.
                    splitter.end(!self.settings.acknowledge);
                    return self.append(&mut splitter);
                }
                Ok(read) => {
                    if !splitter.is_ready() {
                        since = Instant::now();
                    }
                    splitter.push(buffer.get(..read).unwrap_or_default());
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::info!(%error, "the connection to the sender broke");
                    splitter.end(false);
                    return self.append(&mut splitter);
                }
            }
            if splitter.is_ready() && (splitter.ready_bytes() >= BLOCK_BYTES || since.elapsed() >= LINGER) {
                self.append(&mut splitter)?;
            }
        }
        splitter.end(false);
        self.append(&mut splitter)
    }

    fn append(&mut self, splitter: &mut Splitter) -> Result<()> {
        if !splitter.is_ready() {
            return Ok(());
        }
        let Lines { rows, rejected, taken, repaired } = splitter.take()?;
        let (received, counters) = (now_micros(), self.log.counters());
        counters.rejected(&rejected);
        add(&counters.repaired, repaired);
        if let Some(malformed) = &mut self.malformed {
            malformed.keep(&rejected, received);
        }
        let rows = rows.map(|rows| {
            let column: ArrayRef = Arc::new(rows);
            StructArray::from(vec![(Arc::new(Field::new("value", DataType::Utf8, true)), column)])
        });
        match self.log.append(rows.as_ref(), taken, received) {
            // Stopped while the sender was held back: it was told nothing of these lines.
            Err(Error::Misuse { .. }) if self.log.is_stopped() => Ok(()),
            appended => appended.map(drop),
        }
    }
}

/// Tells the sender how many of its lines are safe, as long as the connection lasts.
fn acknowledge_lines(log: &SourceLog, mut stream: &TcpStream, ended: &AtomicBool) {
    let mut told = log.taken();
    let mut written = stream
        .set_write_timeout(Some(ACK_TIMEOUT))
        .and_then(|()| stream.write_all(format!("{told}\n").as_bytes()));
    while written.is_ok() && !ended.load(Ordering::Relaxed) {
        let Some(taken) = log.next_taken(told) else { return };
        if taken > told {
            told = taken;
            written = stream.write_all(format!("{told}\n").as_bytes());
        }
    }
    if let Err(error) = written {
        tracing::info!(%error, "the sender takes no acknowledgements");
        // It would wait for them for ever: the next connection begins with the number.
        let _closed = stream.shutdown(Shutdown::Both);
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
