"""Comparisons between runs, models and variants: paired differences (`comparison`), gates, leaderboards.

Every p-value comes from `comparison.paired_test`.
"""
