"""Batch APIs: requests gathered into jobs, submitted once, polled, and their results handed back."""
