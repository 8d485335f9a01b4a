import sys
from pathlib import Path

# `training_toy` is a module of the tests here and a program of its own, so it is found by its folder.
sys.path.insert(0, str(Path(__file__).parent))
