//! Histories and checkers.
