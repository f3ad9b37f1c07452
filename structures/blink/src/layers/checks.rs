//! The checks that keep keys of bytes right among clients that change them, by name.
//!
//! With the cargo feature `switchable-checks`, which only tests turn on, one can be left out for the current thread: a simulation that does
//! not notice has not tried hard enough.

fatbtree_remote_memory::named_checks! {
    /// A node of a layer says which layer it belongs to: its memory may have been another layer's before.
    Node,
    /// A layer's head says which keys the layer has: its memory may have been another layer's before.
    Head,
    /// A record has the whole key: an entry has eight bytes of it.
    Key,
    /// A value in an entry is that of the key that ends there.
    Ended,
    /// A key that does not begin as the keys of a layer do is told apart from them.
    Prefix,
    /// A layer cannot be written to before an entry leads to it.
    Unborn,
    /// A layer that goes cannot be written to before its entry goes.
    Dead,
    /// A layer goes when it has no keys, no other leaves and no root above.
    Empty,
    /// Layers do not lead to layers without end.
    Depth,
    /// A writer finishes what another one has left of a layer that came or went.
    Settled,
}
