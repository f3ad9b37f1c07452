//! A waker for executors that look between two turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Waker that rings when a future can go on, until it is read.
///
/// ```
/// use std::sync::Arc;
/// use std::task::Waker;
/// use fatbtree_verbs::Alarm;
///
/// let alarm = Alarm::ringing();
/// assert!(alarm.take() && !alarm.take());
/// Waker::from(Arc::clone(&alarm)).wake();
/// assert!(alarm.rings() && alarm.take());
/// ```
#[derive(Debug)]
pub struct Alarm(AtomicBool);

impl Alarm {
    /// Creates an alarm that rings already: a future is polled once before it is woken.
    #[must_use]
    pub fn ringing() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    /// Whether the alarm rings.
    #[must_use]
    pub fn rings(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops the alarm, and returns whether it rang.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
