//! Listening on one of the ports that a firewall lets through.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpListener;

/// Listens on `host`, on the first of `ports` that is free; 0 is any. An address of IPv6 may stand in brackets, as Spark
/// writes it.
///
/// # Errors
/// What the system says of the last of them, or of the first that no other port would help with.
pub(in crate::edge) fn listen(host: &str, ports: impl IntoIterator<Item = u16>) -> Result<TcpListener> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let mut refused = Error::from(ErrorKind::AddrNotAvailable);
    for port in ports {
        match TcpListener::bind((host, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = error,
        }
        if !matches!(refused.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) {
            break;
        }
    }
    Err(refused)
}

/// The address under which others reach a port of a host.
pub(in crate::edge) fn reached_at(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_port_of_a_range_is_taken() {
        let taken = listen("127.0.0.1", [0]).unwrap();
        let port = taken.local_addr().unwrap().port();
        let other = listen("127.0.0.1", [port, 0]).unwrap();
        assert_ne!(other.local_addr().unwrap().port(), port);
        assert_eq!(listen("127.0.0.1", [port]).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn an_address_may_be_of_ipv6_and_in_brackets() {
        let listener = match listen("::1", [0]) {
            // There is no IPv6 on this machine.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => return,
            listener => listener.unwrap(),
        };
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listen("[::1]", [port]).unwrap_err().kind(), ErrorKind::AddrInUse);
        let reached = reached_at("::1", port);
        assert_eq!(reached, reached_at("[::1]", port));
        assert_eq!(reached, listener.local_addr().unwrap().to_string());
        assert_eq!(reached_at("a.host", 7), "a.host:7");
    }

    #[test]
    fn a_host_of_others_is_refused_whatever_the_port() {
        let ports = [0].into_iter().chain(std::iter::once_with(|| panic!("a port more was tried")));
        assert_eq!(listen("192.0.2.1", ports).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    }
}
