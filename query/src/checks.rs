//! Safety checks by name, which tests leave out one at a time.
//!
//! With the cargo feature `switchable-checks`, which only tests turn on, a check can be left out for the current thread. A
//! simulation that does not notice has not tried hard enough. `fatbtree_blink::Check` is the same for trees.

/// A check by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// The window of writes that a server remembers moves on with each write that comes, whatever becomes of that write.
    WindowMovesOn,
}

#[cfg(not(feature = "switchable-checks"))]
impl Check {
    /// Whether the check is made: always.
    #[inline(always)]
    pub(crate) fn on(self) -> bool {
        true
    }
}

#[cfg(feature = "switchable-checks")]
mod switch {
    use super::Check;
    use std::cell::Cell;

    thread_local!(static OFF: Cell<Option<Check>> = const { Cell::new(None) });

    impl Check {
        /// Whether the check is made in this thread.
        #[inline]
        pub(crate) fn on(self) -> bool {
            OFF.get() != Some(self)
        }

        /// Does something without the check, in this thread.
        pub fn without<T>(self, work: impl FnOnce() -> T) -> T {
            struct Restore(Option<Check>);
            impl Drop for Restore {
                fn drop(&mut self) {
                    OFF.set(self.0);
                }
            }
            let _restore = Restore(OFF.replace(Some(self)));
            work()
        }
    }
}
