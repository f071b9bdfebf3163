//! A relay in front of a server: counts bytes, and cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A relay to a port of this machine.
#[derive(Debug)]
pub(crate) struct Relay {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    up: AtomicU64,
    down: AtomicU64,
    /// Bytes to the server until a connection is cut; negative: none is.
    cut_after: AtomicI64,
    cuts: AtomicU64,
}

impl Relay {
    /// Relays to `port` until the tests end.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("bound").port();
        let state = Arc::new(State {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            cut_after: AtomicI64::new(-1),
            cuts: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _only_slower = (client.set_nodelay(true), server.set_nodelay(true));
                let ends = [(&client, &server), (&server, &client)].map(|(from, to)| {
                    (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"))
                });
                for (up, (from, to)) in [true, false].into_iter().zip(ends) {
                    let state = Arc::clone(&shared);
                    std::thread::spawn(move || carry(from, to, up, &state));
                }
            }
        });
        Self { port: own, state }
    }

    /// Names a repository of the registry behind it.
    pub(crate) fn name(&self, repository: &str) -> String {
        format!("127.0.0.1:{}/{repository}", self.port)
    }

    /// Returns how many bytes went to the server and came from it since this was last asked.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.state.up.swap(0, Ordering::SeqCst), self.state.down.swap(0, Ordering::SeqCst))
    }

    /// Cuts the connection on which the next `bytes` have gone to the server.
    pub(crate) fn cut_after(&self, bytes: i64) {
        self.state.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, up: bool, state: &State) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if !up {
            state.down.fetch_add(count as u64, Ordering::SeqCst);
            continue;
        }
        state.up.fetch_add(count as u64, Ordering::SeqCst);
        let left = state.cut_after.load(Ordering::SeqCst);
        if left >= 0 {
            let cut = left < count as i64;
            state.cut_after.store(if cut { -1 } else { left - count as i64 }, Ordering::SeqCst);
            if cut {
                state.cuts.fetch_add(1, Ordering::SeqCst);
                let _gone_already = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
        }
    }
    let _gone_already = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}
