//! State that a structure keeps of a client, one for all handles of the structure.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use super::RemoteMemory;

/// State by type.
#[derive(Default)]
pub(super) struct Shared(RefCell<BTreeMap<TypeId, Rc<dyn Any>>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.0.borrow().len()).finish()
    }
}

impl<V> RemoteMemory<V> {
    /// The state of this type, which lives as long as the memory.
    ///
    /// All handles of a structure on one memory act under the same sessions, so memory servers cannot tell them apart. What must be known
    /// of all of them is kept here, and outlives each: what the client has left on a server, and names that it uses there.
    pub fn shared<T: Default + 'static>(&self) -> Rc<T> {
        let mut all = self.shared.0.borrow_mut();
        let found = all.entry(TypeId::of::<T>()).or_insert_with(|| Rc::new(T::default()));
        Rc::clone(found).downcast().unwrap_or_else(|_| unreachable!("the key is the type"))
    }
}
