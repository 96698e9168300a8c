//! Values of any type that serde supports (feature `serde`), kept as JSON;
//! `docs/decisions/0005-typed-values-as-json.md` says why.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::value::{Expect, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a value as JSON.
pub(in crate::store) fn encode<T: Serialize + ?Sized>(value: &T) -> StoreResult<Vec<u8>> {
    let wrong = |error| StoreError::WrongType {
        what: format!("the value cannot be written as JSON: {error}"),
    };
    serde_json::to_vec(value).map_err(wrong)
}

impl Store {
    /// Sets a key to a value of any type; see [`Store::put`]. [`StoreError::WrongType`] means that
    /// the value cannot be written as JSON.
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

    /// Sets a key to a value of any type if the condition holds; see [`Store::put_if`].
    pub fn put_if_as<T: Serialize + ?Sized>(
        &self,
        key: &[u8],
        value: &T,
        expect: Expect,
    ) -> StoreResult<Version> {
        self.put_if(key, &encode(value)?, expect)
    }

    /// Returns the value of a key and its version; `None` if the key does not exist.
    /// [`StoreError::WrongType`] means that the value is not the JSON of a `T`, as
    /// [`Store::put_as`] writes it.
    pub fn get_as<T: DeserializeOwned>(&self, key: &[u8]) -> StoreResult<Option<(T, Version)>> {
        let Some(found) = self.get(key)? else { return Ok(None) };
        let wrong = |error| {
            let what =
                format!("the value is not the JSON of a {}: {error}", std::any::type_name::<T>());
            StoreError::WrongType { what }
        };
        serde_json::from_slice(found.bytes())
            .map(|value| Some((value, found.version())))
            .map_err(wrong)
    }
}
