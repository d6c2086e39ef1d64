"""Work on stored runs as a whole: recovery from a mirror, `doctor`, retention and compaction."""
