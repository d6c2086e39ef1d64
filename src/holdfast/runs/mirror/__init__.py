"""Runs and their mirrors: claiming, reading from elsewhere, recovering what a lost machine left."""
