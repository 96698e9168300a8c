//! Values of any type that serde knows (feature `serde`), kept as JSON: see docs/decisions for why.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::value::{Expect, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(in crate::store) fn encode<T: Serialize + ?Sized>(value: &T) -> StoreResult<Vec<u8>> {
    let wrong = |error| StoreError::WrongType {
        what: format!("the value cannot be written as JSON: {error}"),
    };
    serde_json::to_vec(value).map_err(wrong)
}

impl Store {
    /// Sets a key to a value of any type; see [`Store::put`]. [`StoreError::WrongType`] if the
    /// value has no form as JSON.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put_as(b"range", &(3, vec!["a", "b"]))?;
    /// let (range, _): ((u32, Vec<String>), _) = store.get_as(b"range")?.expect("just put");
    /// assert_eq!(range, (3, vec!["a".to_string(), "b".to_string()]));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_as<T: Serialize + ?Sized>(&self, key: &[u8], value: &T) -> StoreResult<Version> {
        self.put(key, &encode(value)?)
    }

    /// As [`Store::put_as`], if the key is as expected; see [`Store::put_if`].
    pub fn put_if_as<T: Serialize + ?Sized>(
        &self,
        key: &[u8],
        value: &T,
        expect: Expect,
    ) -> StoreResult<Version> {
        self.put_if(key, &encode(value)?, expect)
    }

    /// The value of a key, and its version. [`StoreError::WrongType`] if it is not what
    /// [`Store::put_as`] wrote for such a type.
    pub fn get_as<T: DeserializeOwned>(&self, key: &[u8]) -> StoreResult<Option<(T, Version)>> {
        let Some(found) = self.get(key)? else { return Ok(None) };
        let wrong = |error| {
            let what =
                format!("the value is not a {} as JSON: {error}", std::any::type_name::<T>());
            StoreError::WrongType { what }
        };
        serde_json::from_slice(found.bytes())
            .map(|value| Some((value, found.version())))
            .map_err(wrong)
    }
}
