"""Comparisons between runs, models and variants: paired differences, gates, leaderboards."""
