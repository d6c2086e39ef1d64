"""The pages of one sample: its transcript, its records, and all of its repeats."""
