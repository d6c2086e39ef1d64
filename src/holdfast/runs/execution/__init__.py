"""Starting and resuming a run: from what the user gave to an engine at work on an open journal."""
