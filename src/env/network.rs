//! The loopback device of a fresh network namespace.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Sets the device with index 1, which is `lo` in every network namespace, up (rtnetlink(7), RTM_NEWLINK).
pub(crate) fn loopback_up() -> io::Result<()> {
    const LENGTH: u32 = 32;
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_WITH_ACKNOWLEDGEMENT: u16 = 1 | 4;
    const LOOPBACK: u32 = 1;
    const IFF_UP: u32 = 1;
    let mut request = Vec::with_capacity(LENGTH as usize);
    // struct nlmsghdr: length, type, flags, sequence, port.
    request.extend_from_slice(&LENGTH.to_ne_bytes());
    request.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    request.extend_from_slice(&REQUEST_WITH_ACKNOWLEDGEMENT.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    // struct ifinfomsg: family, padding, type, index, flags, change mask.
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&LOOPBACK.to_ne_bytes());
    request.extend_from_slice(&IFF_UP.to_ne_bytes());
    request.extend_from_slice(&IFF_UP.to_ne_bytes());
    // Protocol 0 of netlink is NETLINK_ROUTE (netlink(7)).
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0u8; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    // struct nlmsgerr after the header: a negative error number, 0 for success.
    let code = answer
        .get(16..20)
        .filter(|_| length >= 20)
        .map(|bytes| i32::from_ne_bytes(bytes.try_into().expect("four bytes")));
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("the kernel's answer is cut short")),
    }
}

/// Returns the bytes that the loopback device of a process's network namespace received, from its /proc/net/dev.
pub(crate) fn loopback_bytes(text: &str) -> Option<u64> {
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    row.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_row_of_lo() {
        let text = "Inter-|   Receive\n face |bytes    packets\n    lo:  100588      11    0\n  eth0: 5 1\n";
        assert_eq!(loopback_bytes(text), Some(100_588));
        assert_eq!(loopback_bytes("eth0: 5 1"), None);
    }
}
