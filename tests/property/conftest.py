"""Hypothesis, as the property tests use it: no deadlines, and a failure prints what replays it."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("holdfast")
