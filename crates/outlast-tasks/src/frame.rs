//! Frames: the stack is the deque.
//!
//! A fork makes a frame on the stack that offers its right half. Frames refer to the frame above,
//! so the walk up finds the oldest offer and computes its path. A frame has no destructor, so that
//! the right half can be moved out of it, and no reference inside a cell, so that an inner frame
//! can refer to it.

use crate::record::{Path, PathStep, Side, TaskId};
use crate::scope::Spawns;
use crate::task::Offer;
use std::cell::Cell;

/// Whether the right half of a fork is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It is offered, and only the stack knows it.
    Unshared,
    /// It has a record in this own slot.
    Shared(u32),
    /// It is not offered: it runs here, or an earlier life has left records below it.
    NotOffered,
}

/// What a frame stands for.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    /// A task begins here.
    Border(TaskId),
    /// A fork whose left half runs above this frame.
    Fork(&'a dyn Offer),
    /// The right half of a fork runs here.
    Right,
    /// A scope, with the tasks that were spawned in it.
    Scope(&'a Spawns),
}

/// A fork, a scope or the start of a task, on the stack.
pub(crate) struct Frame<'a> {
    pub(crate) up: Option<&'a Frame<'a>>,
    pub(crate) kind: Kind<'a>,
    /// The number of the fork in its strand.
    number: u32,
    sharing: Cell<Sharing>,
    /// The worker's unsaved work when the left half began.
    pub(crate) unsaved: i64,
}

impl<'a> Frame<'a> {
    #[inline(always)]
    pub(crate) fn fork(
        up: &'a Frame<'a>,
        number: u32,
        offer: &'a dyn Offer,
        unsaved: i64,
    ) -> Frame<'a> {
        let sharing = Cell::new(Sharing::Unshared);
        Frame { up: Some(up), kind: Kind::Fork(offer), number, sharing, unsaved }
    }

    #[inline(always)]
    pub(crate) fn right(up: &'a Frame<'a>, number: u32) -> Frame<'a> {
        let sharing = Cell::new(Sharing::NotOffered);
        Frame { up: Some(up), kind: Kind::Right, number, sharing, unsaved: 0 }
    }

    pub(crate) fn border(up: Option<&'a Frame<'a>>, id: TaskId) -> Frame<'a> {
        let sharing = Cell::new(Sharing::NotOffered);
        Frame { up, kind: Kind::Border(id), number: 0, sharing, unsaved: 0 }
    }

    pub(crate) fn scope(up: &'a Frame<'a>, spawns: &'a Spawns) -> Frame<'a> {
        let sharing = Cell::new(Sharing::NotOffered);
        Frame { up: Some(up), kind: Kind::Scope(spawns), number: 0, sharing, unsaved: 0 }
    }

    #[inline(always)]
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing.get()
    }

    pub(crate) fn set_sharing(&self, sharing: Sharing) {
        self.sharing.set(sharing);
    }

    /// The task in which this frame is, and the path from its start to the strand above this frame.
    pub(crate) fn strand(&self) -> (TaskId, Path) {
        let mut path = Path::new();
        let mut frame = self;
        let id = loop {
            match frame.kind {
                Kind::Border(id) => break id,
                Kind::Fork(_) => path.push(PathStep::new(frame.number, Side::Left)),
                Kind::Right => path.push(PathStep::new(frame.number, Side::Right)),
                Kind::Scope(_) => {}
            }
            frame = frame.up.expect("a border is below every fork");
        };
        path.reverse();
        (id, path)
    }

    /// The task in which this frame is, and the path of a half of this frame's fork.
    pub(crate) fn half(&self, side: Side) -> (TaskId, Path) {
        let (id, mut path) = self.up.expect("a border is below every fork").strand();
        path.push(PathStep::new(self.number, side));
        (id, path)
    }
}
