import os

# Both are read once, when Keras and TensorFlow are imported: before any test module. A backend that is set stays.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
