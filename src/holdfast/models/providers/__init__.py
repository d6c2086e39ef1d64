"""One module per model API, and the registry that opens providers by name."""
