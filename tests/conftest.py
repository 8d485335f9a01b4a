import os

# Both are read once, when Keras and TensorFlow are imported: before any test module. A backend that is set stays.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from hypothesis import HealthCheck, settings  # noqa: E402

# A busy machine fails no test. Where the variable CI is set, hypothesis draws the same examples in each run.
settings.register_profile(
    "simretro", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simretro")
