"""The runs of a store: lookup, damage reports, trust, `doctor` and removal."""
