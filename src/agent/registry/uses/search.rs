//! In which logs a row is looked for.

/// In which logs of the run before a use's rows may be, besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// In none.
    Own,
    /// In those over the same plan, if one that has nothing published may have been given its log.
    SamePlan,
    /// In those, and in those over a plan of the same shape that nobody has asked for.
    SameShape,
    /// In any that could as well have been meant.
    All,
}
