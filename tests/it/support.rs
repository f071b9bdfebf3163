//! What the tests stand on: places to run the program in, packages, repositories, walks over trees.

mod catalog;
mod container;
mod images;
mod lying;
mod machine;
mod packages;
mod place;
mod registry;
mod relay;
mod repository;
mod walk;

pub(crate) use catalog::{PROJECT, TASK, host_python, lock_of};
pub(crate) use container::{Powers, STILL_POWERFUL, in_own_root};
pub(crate) use images::{SMALL, image, image_digest, write_small};
pub(crate) use lying::{Asked, Liar, Reply, Shelf, digest};
pub(crate) use machine::{Need, is_root, lacks, long, rounds, work_directory};
pub(crate) use packages::{Package, downloaded, sdist, wheel};
pub(crate) use place::{Finished, Place, User, assert_failed, wait_until};
pub(crate) use registry::{Guard, RealRegistry, make_certificates};
pub(crate) use relay::Relay;
pub(crate) use repository::Repository;
pub(crate) use walk::{Seen, walk};
