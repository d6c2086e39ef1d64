"""The mirror: a copy of a journal in an object store, how it is written, read back and removed."""
