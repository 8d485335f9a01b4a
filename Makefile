.PHONY: install test lint format slow distributed parity ci clean

install:  ## the library, its test extras and the linter
	pip install -e ".[dev]"

test:  ## what a change must pass first
	python -m pytest

lint:
	ruff check .
	ruff format --check .

format:
	ruff check --fix .
	ruff format .

slow:
	python -m pytest -m slow

distributed:  ## in a process of its own: the logical devices are set before TensorFlow starts
	python -m pytest -m distributed

parity:  ## in the environment of requirements-parity.txt
	python -m pytest -m parity
	KERAS_BACKEND=jax python -m pytest -m "backends and not slow"
	KERAS_BACKEND=torch python -m pytest -m "backends and not slow"

ci:  ## all of it, in fresh environments
	bash .ci/run

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
