"""The built-in scorers, one module per family. `registry` lists them by the names that a spec uses."""
