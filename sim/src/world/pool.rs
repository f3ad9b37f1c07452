//! Lists that use their places again, together with the memory that these hold.

use std::ops::{Index, IndexMut};

/// Things by number. A number that was given back is given out again, together with its thing. So vectors keep their
/// memory, and in steady state nothing is allocated.
#[derive(Debug)]
pub(super) struct Pool<T> {
    things: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { things: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Pool<T> {
    /// Takes an unused thing, in the state in which it was left, and returns its number.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.things.push(T::default());
            self.things.len() as u32 - 1
        })
    }

    /// Returns a thing that is not used any more.
    pub(super) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Number of things in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.things.len() - self.free.len()
    }

    /// All things, also unused ones.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.things.iter_mut()
    }
}

impl<T> Index<u32> for Pool<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        &self.things[number as usize]
    }
}

impl<T> IndexMut<u32> for Pool<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.things[number as usize]
    }
}
