"""Who may write a run: the lock and the lease on this machine, numbered terms and claims where there is no flock."""
