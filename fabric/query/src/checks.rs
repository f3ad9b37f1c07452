//! Named safety checks, which tests disable one at a time.
//!
//! With the cargo feature `switchable-checks`, which only tests enable, a check can be disabled for the current
//! thread. A simulation that does not detect this is too weak. `fatbtree_blink::Check` is the equivalent for trees.

/// A check by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Each received write advances the server's window of remembered writes, even if that write is not executed.
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

        /// Runs `work` in this thread with the check disabled.
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
