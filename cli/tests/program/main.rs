//! The program as its users run it, in processes of its own. One test binary, so that everything is linked once.
//!
//! `cargo test -p fatbtree-cli --test program MODULE::` runs the tests of one file.

mod common;

mod architecture;
mod away;
mod bench;
mod beside;
mod bulk;
mod byte_keys;
mod causes;
mod chaos;
mod command_line;
mod control;
mod controllers;
mod demo;
mod dolphin;
mod dpdk;
mod dtx;
mod guide;
mod hash;
mod interrupted;
mod keys;
mod limits;
mod load;
mod metrics;
mod nic;
mod open_loop;
mod output;
mod packaging;
mod pages;
mod queries;
mod restored;
mod roles;
mod schema;
mod shell;
mod simulate;
mod spines;
mod suspended;
mod swept;
mod trust;
mod up;
