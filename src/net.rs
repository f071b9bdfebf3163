//! The network: package indexes, downloads and container registries, by one HTTP set-up. The only asynchronous part,
//! and it shows none of that to the rest.

mod client;
mod error;
mod http;
mod index;
mod registry;
mod retry;
mod settings;
mod transfer;

pub use client::Client;
pub use error::{Broken, NetError};
pub use http::Http;
pub use index::{IndexFile, PackageIndex};
pub use registry::{AuthFile, Registry};
pub use settings::{HttpSettings, ProxySettings};
