//! What only Linux has: handles and files of processes, and flags of sockets. Nothing else in the core needs Linux; on other
//! systems a driver runs, and an executor says that it does not.

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::Pid;

use crate::error::{Error, Result};

/// Sends what goes at once, or nothing, and no signal if nobody reads any more.
#[cfg(target_os = "linux")]
pub(super) const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// Sends what goes at once, or nothing. Python and Rust both ignore the signal.
#[cfg(not(target_os = "linux"))]
pub(super) const AT_ONCE: SendFlags = SendFlags::DONTWAIT;

/// A socket for other processes of this host, which those that are started do not have.
pub(super) fn unix_socket() -> rustix::io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketType};
    #[cfg(target_os = "linux")]
    {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(socket)
    }
}

/// A process whose end is waited for.
#[derive(Debug)]
pub(super) enum Watched {
    /// By a handle of the system's, which becomes readable.
    Handle(OwnedFd),
    /// By looking again and again, where there are no such handles (Linux before 5.3, and containers that
    /// know no newer calls). The start time tells it from a later process of the same number.
    Looks { pid: Pid, started: u64 },
    /// Nothing is watched.
    Nothing,
}

impl Watched {
    /// Begins to watch a process; 0 stands for none.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such process; [`Error::Config`] where there is no Linux.
    pub(super) fn process(pid: u32) -> Result<Self> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(Self::Nothing) };
        if !cfg!(target_os = "linux") {
            let reason = "Clonos watches executors through Linux's process files: run executors on Linux";
            return Err(Error::Config {
                setting: std::env::consts::OS.to_owned(),
                reason: reason.to_owned(),
            });
        }
        match handle(pid) {
            Ok(handle) => Ok(Self::Handle(handle)),
            // Refused by a filter of system calls is as good as not there.
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => Self::looks(pid),
            Err(error) => Err(Error::io("watching the executor", &error.into())),
        }
    }

    fn looks(pid: Pid) -> Result<Self> {
        let started = started(pid);
        let gone = || Error::io("watching the executor", &Errno::SRCH.into());
        started.map(|started| Self::Looks { pid, started }).ok_or_else(gone)
    }

    /// Whether it has ended; waits a while for it.
    pub(super) fn ended(&self, patience: Duration) -> bool {
        match self {
            Self::Handle(process) => {
                let nanos = i64::from(patience.subsec_nanos());
                let seconds = i64::try_from(patience.as_secs()).unwrap_or(i64::MAX);
                let timeout = Timespec { tv_sec: seconds, tv_nsec: nanos };
                let mut fds = [PollFd::new(process, PollFlags::IN)];
                matches!(poll(&mut fds, Some(&timeout)), Ok(ready) if ready > 0)
            }
            Self::Looks { pid, started: at } => {
                let ended = started(*pid) != Some(*at);
                if !ended {
                    sleep(patience);
                }
                ended
            }
            Self::Nothing => {
                sleep(patience);
                false
            }
        }
    }
}

/// When a process was started, in ticks since the system was; `None` if it has ended.
fn started(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is the command in parentheses and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    // One that waits to be reaped has ended.
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(target_os = "linux")]
fn handle(pid: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn handle(_pid: Pid) -> rustix::io::Result<OwnedFd> {
    Err(Errno::NOSYS)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn an_end_is_seen_with_a_handle_and_without() {
        for handle in [true, false] {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let watched = if handle {
                Watched::process(child.id()).unwrap()
            } else {
                let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
                Watched::looks(pid).unwrap()
            };
            assert!(!watched.ended(SHORT), "handle: {handle}");
            child.kill().unwrap();
            let killed = Instant::now();
            // Not reaped yet.
            while !watched.ended(SHORT) {
                assert!(killed.elapsed() < Duration::from_secs(5), "handle: {handle}");
            }
            child.wait().unwrap();
            assert!(watched.ended(SHORT), "handle: {handle}");
        }
    }

    #[test]
    fn another_process_of_the_same_number_is_another() {
        let pid = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        let Watched::Looks { started, .. } = Watched::looks(pid).unwrap() else { panic!("it looks") };
        assert!(!Watched::Looks { pid, started }.ended(SHORT));
        assert!(Watched::Looks { pid, started: started + 1 }.ended(SHORT));
    }

    #[test]
    fn who_is_gone_cannot_be_watched() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(Watched::process(child.id()).is_err());
        assert!(Watched::looks(pid).is_err());
        assert!(!Watched::process(0).unwrap().ended(SHORT));
    }
}
