"""Starting and resuming a run: prepare the spec, claim the run, open its journal, run the engine, record the end."""
