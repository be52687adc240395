//! What is left out or done wrongly on purpose.

/// What is left out on purpose, to show that the oracle notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// What comes with frames is not held.
    SkipAbsorb,
    /// Output leaves before what was absorbed is stable.
    SkipShare,
    /// A new attempt does not fence the older ones.
    NoFence,
    /// The recorded order of frames is not kept to.
    IgnoreOrder,
    /// An input that ends early counts as whole.
    AcceptCut,
    /// Determinants travel one hop less.
    ShortDepth,
    /// What consumers absorb of a sender that was opened again is not confirmed.
    NoConfirmation,
    /// A block of the last operator is stable before what it depends on is.
    OwnBlockFirst,
    /// A consumer on its sender's host does not give copies to others.
    NoSpread,
    /// Logs are dropped before their epoch's commit.
    TruncateEarly,
    /// Who does not answer is taken for dead.
    SlowIsDead,
    /// When the driver goes on after a pause, all others have been silent for so long.
    PauseIsSilence,
    /// A request that comes late is carried out as if it were new.
    LateIsNew,
    /// What was sent to a peer counts as there, whether it was answered or not.
    SentIsThere,
    /// An open that is repeated is taken for another.
    RetryIsAnother,
    /// Of several copies the shortest is gone on with.
    ShortestCopy,
    /// The first holder that answers decides, also where consumers have absorbed more.
    FirstAnswer,
    /// What is published is not copied.
    NoCopies,
    /// The registry does not hear who holds a log.
    UnknownHolders,
    /// Nor that a peer was replaced.
    OldPeersCount,
    /// A log that is found is not gone on with.
    BeginsAnew,
    /// Who was taken for dead goes on when it is back, under another name.
    DeadGoesOn,
    /// Of a log that consumers have absorbed, only what its own agent held counts.
    ConsumersDoNotCount,
    /// What consumers have of an older attempt counts beside the newer one's.
    StaleCounts,
    /// A log that is lost is taken for one that never was.
    LostIsNew,
    /// A log that frames name is kept where it is, as if it rode in them.
    NamedIsKept,
    /// Who shares the log that counts is asked whether it does, and that nobody takes it does not matter.
    NobodyHasCopies,
    /// What follows on a log that was published is not.
    KeptBehindPublished,
    /// What agents have of a use of the epoch's name that is committed counts, until they hear of that.
    OlderUsesCount,
    /// What the disk did not take counts as written there.
    RefusedIsWritten,
    /// Nobody makes other copies where some were lost.
    NothingIsRepaired,
}
