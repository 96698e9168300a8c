//! Values of any type that serde supports: as JSON (feature `serde`), or in the binary form of
//! postcard (feature `postcard`); `docs/decisions/0005-typed-values-as-json.md` says when to use
//! which.

use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::value::{Expect, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The error of a value that cannot be written.
fn not_written(form: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::WrongType { what: format!("the value cannot be written as {form}: {error}") }
}

/// The error of a value that is not the form of a `T`.
fn not_read<T>(form: &str, error: impl std::fmt::Display) -> StoreError {
    let name = std::any::type_name::<T>();
    StoreError::WrongType { what: format!("the value is not the {form} of a {name}: {error}") }
}

#[cfg(feature = "serde")]
fn to_json<T: Serialize + ?Sized>(value: &T) -> StoreResult<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| not_written("JSON", error))
}

#[cfg(feature = "postcard")]
fn to_binary<T: Serialize + ?Sized>(value: &T) -> StoreResult<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| not_written("postcard", error))
}

#[cfg(feature = "postcard")]
fn from_binary<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => {
            Err(not_read::<T>("postcard", format!("{} bytes are left over", rest.len())))
        }
        Err(error) => Err(not_read::<T>("postcard", error)),
    }
}

#[cfg(feature = "serde")]
impl Store {
    /// Sets a key to a value of any type, as JSON; see [`Store::put`]. [`StoreError::WrongType`]
    /// means that the value cannot be written as JSON.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put_as("range", &(3, vec!["a", "b"]))?;
    /// let (range, _): ((u32, Vec<String>), _) = store.get_as("range")?.expect("just put");
    /// assert_eq!(range, (3, vec!["a".to_string(), "b".to_string()]));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_as<T: Serialize + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
    ) -> StoreResult<Version> {
        self.put(key, &to_json(value)?)
    }

    /// Sets a key to a value of any type, as JSON, if the condition holds; see [`Store::put_if`].
    pub fn put_if_as<T: Serialize + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
        expect: Expect,
    ) -> StoreResult<Version> {
        self.put_if(key, &to_json(value)?, expect)
    }

    /// Returns the value of a key and its version; `None` if the key does not exist.
    /// [`StoreError::WrongType`] means that the value is not the JSON of a `T`, as
    /// [`Store::put_as`] writes it.
    pub fn get_as<T: DeserializeOwned>(
        &self,
        key: impl AsRef<[u8]>,
    ) -> StoreResult<Option<(T, Version)>> {
        let Some(found) = self.get(key)? else { return Ok(None) };
        let value = serde_json::from_slice(found.bytes());
        let value = value.map_err(|error| not_read::<T>("JSON", error))?;
        Ok(Some((value, found.version())))
    }
}

#[cfg(feature = "postcard")]
impl Store {
    /// Sets a key to a value of any type, in the binary form of postcard, which is shorter and
    /// faster than JSON, and holds all numbers. Other languages do not read it, and it has no names
    /// of fields: all members and all readers of a snapshot use equal types.
    ///
    /// ```
    /// # use outlast::store::{Options, Store};
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put_binary("best", &(f64::NEG_INFINITY, [1u8, 2, 3]))?;
    /// let ((best, _), _): ((f64, [u8; 3]), _) = store.get_binary("best")?.expect("just put");
    /// assert_eq!(best, f64::NEG_INFINITY);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_binary<T: Serialize + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
    ) -> StoreResult<Version> {
        self.put(key, &to_binary(value)?)
    }

    /// Sets a key to a value of any type, in the binary form, if the condition holds; see
    /// [`Store::put_if`].
    pub fn put_if_binary<T: Serialize + ?Sized>(
        &self,
        key: impl AsRef<[u8]>,
        value: &T,
        expect: Expect,
    ) -> StoreResult<Version> {
        self.put_if(key, &to_binary(value)?, expect)
    }

    /// Returns the value of a key that [`Store::put_binary`] wrote, and its version; `None` if the
    /// key does not exist. [`StoreError::WrongType`] means that the bytes are no `T`. The bytes of
    /// another type can be those of a `T`, too.
    pub fn get_binary<T: DeserializeOwned>(
        &self,
        key: impl AsRef<[u8]>,
    ) -> StoreResult<Option<(T, Version)>> {
        let Some(found) = self.get(key)? else { return Ok(None) };
        Ok(Some((from_binary(found.bytes())?, found.version())))
    }
}
