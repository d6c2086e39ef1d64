"""One module per model API, and the registry that finds them by name."""
