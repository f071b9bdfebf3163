//! The store's promises, kept by the program and by the library on real file systems.

mod collect;
mod crash;
mod crowd;
mod damage;
mod faults;
mod full;
mod history;
mod kills;
mod packs;
mod places;
mod power;
mod report;
mod scenes;
mod space;
mod wounds;
