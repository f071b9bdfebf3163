//! The store's promises, kept by the program and by the library on real file systems.

mod collect;
mod crash;
mod damage;
mod full;
mod history;
mod places;
