"""The mirror: a copy of a run in an object store.

`uploader` writes it while the run works, and `heartbeat` checks that no other process owns the run. `pieces` names its
objects, and `assembly` and `restore` put a run together from them. `removal` and `tombstones` delete it in a way that
no late upload can bring it back.
"""
