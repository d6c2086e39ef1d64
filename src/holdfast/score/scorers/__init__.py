"""The built-in scorers, one module per family. `registry` lists them all."""
