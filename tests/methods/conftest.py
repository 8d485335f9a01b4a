import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `mirrored_simbert` is a program and a module of the tests
