//! What pods and policies have in the kernel: the one place that writes, compares, repairs and removes
//! their rows.

mod address_filter;
mod capture_range;
mod earlier;
mod ifaces;
pub mod pod_rows;
pub mod policy_rows;
mod row_check;
mod row_quota;

pub use self::{
    earlier::earlier_rows,
    pod_rows::{PodRows, names},
    row_check::RowCheck,
    row_quota::RowQuotas,
};
