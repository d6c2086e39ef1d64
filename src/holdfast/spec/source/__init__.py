"""From YAML, `--set` values and the environment to one effective spec, with errors that name the place."""
