"""How many cases the property tests draw: hundreds, always the same; 10,000 new ones under the profile long."""

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("short", max_examples=200, derandomize=True, **COMMON)
settings.register_profile("long", max_examples=10_000, print_blob=True, **COMMON)
settings.load_profile("short")
