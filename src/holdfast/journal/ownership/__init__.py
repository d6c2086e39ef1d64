"""Ownership: which process may write a run. At most one at a time; a process that lost the run stops.

- Lock (`lock`): a flock on `<run>/lock`. It decides among the processes that share a file system. The kernel releases
  it when the process dies, so a lock is never stale.
- Lease (`lease`): `lease.json`, the holder's heartbeat and progress, for readers. It never decides who may write.
- Term (`terms`): replaces the flock on file systems without one. `<run>/lease/<number>` is created once by its holder.
- Claim (`claims`): the same among machines that share only a mirror. `lease/<epoch>` in the object store is created
  once by its holder. Terms and claims follow one protocol: create-only file with a nonce, read back when the result is
  unknown, a heartbeat beside it, expiry by the observer's own monotonic clock, greatest number wins.
- Epoch: the number of one ownership of a run. It grows with every opening, and each segment header records it.
- Fence: the last record of the older epoch that the new epoch accepts, stored in the header of its first segment.
  Records behind the fence are void. So a late write of a process that lost the run can never count.
- Location (`lock`): checks that the open files are still the ones at their paths, because a lock on a deleted file
  protects nothing.

A writer sees only the lock. `Lock` holds the term, if there is one, and the mirror's heartbeat reports a lost claim to
it (`Lock.lose`). So `lost`, `look` and `release` are the one interface, whatever decides who owns the run. Terms and
claims share only the rules for watching a holder (`watch`): a term beats in its own thread and decides alone, a claim
is taken before the run is restored and beats between uploads, which count only after a beat.

A crash leaves at most an old lease, term or claim. The next process recognises it as dead, or waits until it expires.
"""
