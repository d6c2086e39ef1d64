"""Places the workers of a sharded run on other machines and replaces those that die.

`placement` decides when a worker is started, replaced or stopped. `ray_pool` places them on a Ray cluster: each has an
actor (`ray_worker`). `process` is one worker process and the socket to it. `totals` adds up what all have done.

Nothing here stores anything, and no answer passes through here: each worker writes its own journal, as if it had been
started by hand. Losing the driver, a node or a worker costs what was in flight there, and the same command continues.
"""
