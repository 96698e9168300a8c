//! Calls on a single key: get, put, conditional put, delete, add, wait.

use super::{Found, Worker, read_access, version};
use outlast::store::{Expect, KeyHandle, StoreError, StoreResult, Version};
use outlast_check::history::{self, Access, CallKind, Key, Outcome};
use outlast_check::workload::{self, Random};

/// The longest value that is read into a buffer; the store allocates for longer values.
const BUFFER_LEN: usize = 4096;

/// How a call is made: by key or by handle, into a buffer or not, the value in parts or not. The
/// checkers judge all forms alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallForm {
    by_handle: bool,
    into_buffer: bool,
    in_parts: bool,
}

impl CallForm {
    const PLAIN: CallForm = CallForm { by_handle: false, into_buffer: false, in_parts: false };

    /// The form of the call with this sequence. Most calls go by handle, so that the location that
    /// a handle caches is often still right.
    pub(super) fn of(sequence: u64) -> CallForm {
        let bits = Random::new(sequence).next();
        CallForm {
            by_handle: !bits.is_multiple_of(4),
            into_buffer: bits & 4 != 0,
            in_parts: bits & 24 == 24,
        }
    }
}

impl Worker {
    /// The handle of a key.
    fn handle(&mut self, key: &Key) -> StoreResult<&KeyHandle> {
        if !self.handles.contains_key(key) {
            self.handles.insert(key.clone(), self.store.handle(key.bytes())?);
        }
        Ok(&self.handles[key])
    }

    /// Reads a key by a call of this form.
    fn read(&mut self, form: CallForm, key: &Key) -> StoreResult<Option<(Vec<u8>, Version)>> {
        if form.into_buffer {
            let mut buffer = vec![0; BUFFER_LEN];
            let read = match form.by_handle {
                true => self.handle(key)?.get_into(&mut buffer),
                false => self.store.get_into(key.bytes(), &mut buffer),
            };
            match read {
                Ok(found) => return Ok(found.map(|(len, at)| (buffer[..len].to_vec(), at))),
                Err(StoreError::BufferTooSmall { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let found =
            if form.by_handle { self.handle(key)?.get() } else { self.store.get(key.bytes()) };
        Ok(found?.map(|found| {
            let at = found.version();
            (found.into_bytes(), at)
        }))
    }

    /// Reads a key by name and records the call.
    pub(crate) fn get(&mut self, key: &Key) -> anyhow::Result<Found> {
        self.get_by(CallForm::PLAIN, key)
    }

    pub(super) fn get_by(&mut self, form: CallForm, key: &Key) -> anyhow::Result<Found> {
        let ask = [Access::ask(key)];
        self.invoke(CallKind::Get, &ask)?;
        match self.read(form, key) {
            Ok(found) => {
                let found =
                    self.note(key, found.as_ref().map(|(bytes, at)| (bytes.as_slice(), *at)));
                self.returned(Outcome::Ok, &[read_access(key, found)])?;
                Ok(Found::Read(found.map(|(at, value)| (version(at), value))))
            }
            Err(error) => {
                let is_lost = matches!(error, StoreError::DataLost { .. });
                self.failed(error, &ask)?;
                Ok(if is_lost { Found::DataLost } else { Found::Unknown })
            }
        }
    }

    pub(super) fn put(&mut self, key: &Key, sequence: u64, length: usize) -> anyhow::Result<()> {
        let (bytes, value) = self.new_value(key, sequence, length);
        let write = Access::write(key, value);
        self.invoke(CallKind::Put, std::slice::from_ref(&write))?;
        let form = CallForm::of(sequence);
        // Parts of which the first begins and the last ends inside a word.
        let (first, rest) = bytes.split_at(bytes.len() / 3);
        let (second, third) = rest.split_at(rest.len().min(5));
        let parts = [first, second, third];
        let put = match (form.by_handle, form.in_parts) {
            (true, true) => self.handle(key).and_then(|handle| handle.put_parts(&parts)),
            (true, false) => self.handle(key).and_then(|handle| handle.put(&bytes)),
            (false, true) => self.store.put_parts(key.bytes(), &parts),
            (false, false) => self.store.put(key.bytes(), &bytes),
        };
        match put {
            Ok(at) => {
                self.seen.insert(key.clone(), Some((at, value)));
                self.returned(Outcome::Ok, &[write.at(version(at))])
            }
            Err(error) => self.failed(error, &[write]),
        }
    }

    pub(super) fn put_if(
        &mut self,
        key: &Key,
        sequence: u64,
        length: usize,
        expect: workload::Expect,
    ) -> anyhow::Result<()> {
        let expected = match expect {
            workload::Expect::Absent => None,
            workload::Expect::LastSeen => {
                if !self.seen.contains_key(key) {
                    self.get(key)?;
                }
                self.seen.get(key).copied().flatten()
            }
        };
        let (bytes, value) = self.new_value(key, sequence, length);
        let accesses = [read_access(key, expected), Access::write(key, value)];
        let expect = expected.map_or(Expect::Absent, |(at, _)| Expect::Version(at));
        self.invoke(CallKind::PutIf, &[Access::ask(key), accesses[1].clone()])?;
        let put = match CallForm::of(sequence).by_handle {
            true => self.handle(key).and_then(|handle| handle.put_if(&bytes, expect)),
            false => self.store.put_if(key.bytes(), &bytes, expect),
        };
        match put {
            Ok(at) => {
                self.seen.insert(key.clone(), Some((at, value)));
                let [read, write] = accesses;
                self.returned(Outcome::Ok, &[read, write.at(version(at))])
            }
            // A conflict tells the version that was found, but not its value: only an absent key is
            // a whole read.
            Err(StoreError::Conflict { found: None }) => {
                self.seen.insert(key.clone(), None);
                self.returned(Outcome::Ok, &[Access::read(key)])
            }
            Err(StoreError::Conflict { found: Some(_) }) => {
                self.seen.remove(key);
                self.returned(Outcome::Failed, &accesses)
            }
            Err(error) => {
                let [_, write] = accesses;
                self.failed(error, &[Access::ask(key), write])
            }
        }
    }

    pub(super) fn delete(&mut self, form: CallForm, key: &Key) -> anyhow::Result<()> {
        let delete = [Access::delete(key)];
        self.invoke(CallKind::Delete, &delete)?;
        let deleted = match form.by_handle {
            true => self.handle(key).and_then(KeyHandle::delete),
            false => self.store.delete(key.bytes()),
        };
        match deleted {
            Ok(existed) => {
                self.seen.insert(key.clone(), None);
                // Deleting an absent key is a read.
                let access = if existed { Access::delete(key) } else { Access::read(key) };
                self.returned(Outcome::Ok, &[access])
            }
            Err(error) => self.failed(error, &delete),
        }
    }

    pub(super) fn add(&mut self, form: CallForm, key: &Key, delta: i64) -> anyhow::Result<()> {
        let access = Access::add(key, delta);
        self.invoke(CallKind::Add, std::slice::from_ref(&access))?;
        let added = match form.by_handle {
            true => self.handle(key).and_then(|handle| handle.add(delta)),
            false => self.store.add(key.bytes(), delta),
        };
        match added {
            Ok(sum) => self.returned(Outcome::Ok, &[access.saw(history::Value::number(sum))]),
            Err(error) => self.failed(error, &[access]),
        }
    }

    pub(super) fn wait(&mut self, key: &Key) -> anyhow::Result<()> {
        let newer_than = self.seen.get(key).copied().flatten().map(|(at, _)| at);
        let ask = [Access::ask(key)];
        self.invoke(CallKind::Wait, &ask)?;
        let deadline = self.job.now().after(self.wait_for);
        match self.store.wait(key.bytes(), newer_than, deadline) {
            Ok(Some(found)) => {
                let found = self.note(key, Some((found.bytes(), found.version())));
                self.returned(Outcome::Ok, &[read_access(key, found)])
            }
            Ok(None) => self.returned(Outcome::Ok, &ask),
            Err(error) => self.failed(error, &ask),
        }
    }
}
