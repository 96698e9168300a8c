//! Outlast.
