//! Tasks, and the list of tasks that all members have.

use crate::bag::Bag;
use crate::cx::Cx;
use crate::error::TaskError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;

/// A task: arguments that any member can run.
///
/// A task is pure, up to the store: equal arguments fork the same tasks in the same order, and give
/// the same output. A life of a task that follows the death of its worker finds by this what the
/// earlier life had finished.
pub trait Task: Serialize + DeserializeOwned + 'static {
    /// The name of the task, unique in the program.
    const NAME: &'static str;

    /// What the task computes.
    type Output: Serialize + DeserializeOwned + 'static;

    /// Runs the task. It forks through `cx`.
    fn run(self, cx: &mut Cx<'_>) -> Self::Output;
}

/// Outputs that [`Cx::sum`] adds up. The order and shape of the additions are equal in each run, so
/// sums of floating point numbers are, too.
pub trait Sum {
    /// The sum of nothing.
    fn zero() -> Self;

    /// The sum of two.
    fn add(self, other: Self) -> Self;
}

macro_rules! sum_of_numbers {
    ($zero:expr, $add:ident: $($type:ty),*) => {
        $(impl Sum for $type {
            fn zero() -> $type {
                $zero
            }
            fn add(self, other: $type) -> $type {
                self.$add(other)
            }
        })*
    };
}

sum_of_numbers!(0, wrapping_add: u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! sum_of_floats {
    ($($type:ty),*) => {
        $(impl Sum for $type {
            fn zero() -> $type {
                0.0
            }
            fn add(self, other: $type) -> $type {
                self + other
            }
        })*
    };
}

sum_of_floats!(f32, f64);

impl<A: Sum, B: Sum> Sum for (A, B) {
    fn zero() -> (A, B) {
        (A::zero(), B::zero())
    }

    fn add(self, other: (A, B)) -> (A, B) {
        (self.0.add(other.0), self.1.add(other.1))
    }
}

/// The right half of a fork: it can be run here, or encoded for another member.
pub(crate) trait Half: Offer {
    type Output: Serialize + DeserializeOwned;

    fn run_here(self, cx: &mut Cx<'_>) -> Self::Output;
}

/// What a frame offers to other members.
pub(crate) trait Offer {
    /// The type under which the task is registered.
    fn registered_as(&self) -> TypeId;

    fn name(&self) -> &'static str;

    /// The bytes of the arguments.
    fn encode(&self) -> Result<Vec<u8>, postcard::Error>;
}

impl<T: Task> Offer for T {
    fn registered_as(&self) -> TypeId {
        TypeId::of::<T>()
    }

    fn name(&self) -> &'static str {
        T::NAME
    }

    fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(self)
    }
}

impl<T: Task> Half for T {
    type Output = T::Output;

    #[inline]
    fn run_here(self, cx: &mut Cx<'_>) -> T::Output {
        self.run(cx)
    }
}

/// Several tasks of a type, as the right half of [`Cx::all`].
pub(crate) struct AllOf<'s, T>(pub(crate) &'s [T]);

/// Several tasks of a type, as the right half of [`Cx::sum`].
pub(crate) struct SumOf<'s, T>(pub(crate) &'s [T]);

/// Stands for `AllOf` in the list of tasks, where no lifetime can stand.
struct AllMarker<T>(PhantomData<T>);

/// Stands for `SumOf` in the list of tasks.
struct SumMarker<T>(PhantomData<T>);

/// Stands for the parts of a bag in the list of tasks.
struct BagMarker<B>(PhantomData<B>);

impl<T: Task> Offer for AllOf<'_, T> {
    fn registered_as(&self) -> TypeId {
        TypeId::of::<AllMarker<T>>()
    }

    fn name(&self) -> &'static str {
        T::NAME
    }

    fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(self.0)
    }
}

impl<T: Task + Clone> Half for AllOf<'_, T> {
    type Output = Vec<T::Output>;

    fn run_here(self, cx: &mut Cx<'_>) -> Vec<T::Output> {
        cx.all_here(self.0)
    }
}

impl<T: Task> Offer for SumOf<'_, T> {
    fn registered_as(&self) -> TypeId {
        TypeId::of::<SumMarker<T>>()
    }

    fn name(&self) -> &'static str {
        T::NAME
    }

    fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(self.0)
    }
}

impl<T: Task<Output: Sum> + Clone> Half for SumOf<'_, T> {
    type Output = T::Output;

    fn run_here(self, cx: &mut Cx<'_>) -> T::Output {
        cx.sum_here(self.0)
    }
}

/// Runs a task from the bytes of its arguments; returns the bytes of its output.
pub(crate) type RunBytes = fn(&[u8], &mut Cx<'_>) -> Result<Vec<u8>, postcard::Error>;

/// An entry of the list of tasks.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) run: RunBytes,
    /// What the task counts for on a stack, in tenths.
    pub(crate) weight: u32,
}

/// What a task counts for on a stack, in tenths. A bag forks nothing on its stack.
pub(crate) const WEIGHT: u32 = 10;
const BAG_WEIGHT: u32 = 1;

/// The list of tasks. All members have the same list.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    listed: Vec<Listed>,
    numbers: HashMap<TypeId, u32>,
}

impl Registry {
    fn add(&mut self, marker: TypeId, name: String, weight: u32, run: RunBytes) {
        if !self.numbers.contains_key(&marker) {
            self.numbers.insert(marker, self.listed.len() as u32);
            self.listed.push(Listed { name, run, weight });
        }
    }

    pub(crate) fn add_task<T: Task>(&mut self) {
        self.add(TypeId::of::<T>(), T::NAME.to_string(), WEIGHT, |bytes, cx| {
            postcard::to_stdvec(&postcard::from_bytes::<T>(bytes)?.run(cx))
        });
    }

    pub(crate) fn add_all<T: Task + Clone>(&mut self) {
        self.add(TypeId::of::<AllMarker<T>>(), format!("all {}", T::NAME), WEIGHT, |bytes, cx| {
            postcard::to_stdvec(&cx.all_here(&postcard::from_bytes::<Vec<T>>(bytes)?))
        });
    }

    pub(crate) fn add_sum<T: Task<Output: Sum> + Clone>(&mut self) {
        self.add(TypeId::of::<SumMarker<T>>(), format!("sum {}", T::NAME), WEIGHT, |bytes, cx| {
            postcard::to_stdvec(&cx.sum_here(&postcard::from_bytes::<Vec<T>>(bytes)?))
        });
    }

    pub(crate) fn add_bag<B: Bag>(&mut self) {
        let name = format!("bag {}", B::NAME);
        self.add(TypeId::of::<BagMarker<B>>(), name, BAG_WEIGHT, |bytes, cx| {
            let bag = postcard::from_bytes::<B>(bytes)?;
            postcard::to_stdvec(&cx.work_off(bag))
        });
    }

    /// The number of the task that a frame offers.
    pub(crate) fn number(&self, offer: &dyn Offer) -> Result<u32, TaskError> {
        self.number_of(offer.registered_as(), offer.name())
    }

    /// The number of a bag.
    pub(crate) fn bag_number<B: Bag>(&self) -> Result<u32, TaskError> {
        self.number_of(TypeId::of::<BagMarker<B>>(), B::NAME)
    }

    fn number_of(&self, id: TypeId, name: &str) -> Result<u32, TaskError> {
        let unregistered = || TaskError::Unregistered { task: name.to_string() };
        self.numbers.get(&id).copied().ok_or_else(unregistered)
    }

    pub(crate) fn listed(&self, number: u32) -> Option<&Listed> {
        self.listed.get(number as usize)
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        self.listed(number).map_or("?", |listed| &listed.name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.listed.iter().map(|listed| listed.name.as_str())
    }

    /// Two tasks with one name, if there are any.
    pub(crate) fn twice(&self) -> Option<&str> {
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}
