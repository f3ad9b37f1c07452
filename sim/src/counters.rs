//! Counters of seeds, which are added up field by field.

/// A structure of counters with its [`AddAssign`](std::ops::AddAssign).
macro_rules! counters {
    ($(#[$of:meta])* $vis:vis struct $name:ident {
        $($(#[$field:meta])* $field_vis:vis $counter:ident: $type:ty,)*
    }) => {
        $(#[$of])*
        $vis struct $name {
            $($(#[$field])* $field_vis $counter: $type,)*
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$counter += other.$counter;)*
            }
        }
    };
}
