//! The checker is checked: by hand, against all orders of small histories, and with long ones.

mod long;
mod oracle;
mod scans;
mod wrong;
