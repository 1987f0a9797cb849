//! How a function is exported to C: [`exported`].

/// Defines a function of the ABI. One without a result type has a status, and its body ends in `Ok(())`; one with a
/// result type also says what it returns where its body fails. Panics are caught either way. The header says what
/// callers promise.
macro_rules! exported {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null, or what the header says of them.
        // SAFETY: names that begin with `farandole_` and `horovod_` are ours, and each is defined once.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            $crate::status::carry_out(move || $body)
        }
    };
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, otherwise $value:expr;
        $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null, or what the header says of them.
        // SAFETY: names that begin with `farandole_` and `horovod_` are ours, and each is defined once.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $crate::status::answer($value, move || $body)
        }
    };
}
