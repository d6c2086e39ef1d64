"""Output formats: one module per format that a report or an export is written in."""
