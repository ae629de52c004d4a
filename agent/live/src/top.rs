//! `top`: pods and their connections a second.
//!
//! Readings of counters become [`Row`]s in a [`Meter`]. A [`View`] holds what is shown of them and what keys do;
//! [`mod@draw`] draws it, and [`run()`] is the loop around both.

mod columns;
mod draw;
mod meter;
mod report;
mod run;
mod view;
mod wrap;

pub use self::{
    columns::{cells, header},
    draw::{Theme, draw},
    meter::Meter,
    report::{Origin, PerSecond, Row, TopReport},
    run::{Outlet, Source, Traced, Update, run},
    view::{Ask, PodKey, Settings, View},
};
