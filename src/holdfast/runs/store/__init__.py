"""The runs of a store: lookup, damage reports, provenance and trust."""
