# `make demo` and `make test` set up everything they need in .venv; see README.md.
PYTHON ?= $(firstword $(foreach name,python3.11 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-test
DEMO_READY := $(VENV)/.ready-all

# Where torch comes from. By default tools/set_up.py takes a CPU build on a machine without an NVIDIA GPU.
export TORCH_INDEX ?=

# Some CPUs advertise AMX but trap on it in bfloat16 products, so oneDNN is limited to AVX-512.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each process of each run compiles all tests again, which takes 6 seconds.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in this many processes, with one thread each.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n : 8)))
PYTEST := $(BIN)/python -m pytest -q
# a file's tests run in one process, which sets their fixtures up once
PARALLEL := -n $(JOBS) --dist loadfile

# Debian packages that only browser tests require
BROWSER_PACKAGES := chromium chromium-driver

# Tests of numerics, which `make test` runs with one thread and every capability of the CPU. `make test-cpus` repeats them
# as on older CPUs, once with two threads.
NUMERICS := ops/test_attention.py ops/test_dropout.py ops/test_nan.py ops/test_transforms.py nn \
  weights/test_statistics.py weights/test_products.py weights/test_divergences.py weights/test_indexing.py \
  test_torch_compat.py huggingface/test_attention_function.py huggingface/test_watching.py translation/test_model.py \
  analysis/test_corpus.py
CPU_SETTINGS := ATEN_CPU_CAPABILITY=default "ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2"

# Tests that run with jaxtyping's import hook, which checks shape annotations at run time. Compiled graphs cannot contain
# such checks, and they would raise before clearhead's own checks of arguments.
SHAPES := ops/test_masks.py weights/test_statistics.py weights/test_products.py weights/test_scaled.py \
  weights/test_mean_heads.py weights/test_divergences.py weights/test_matrix.py nn/test_attention.py nn/test_kv_cache.py nn/test_positions.py \
  nn/test_torch_weights.py recording analysis/test_roles.py analysis/test_relations.py explain/test_tracing.py \
  explain/test_checking.py translation/heads translation/test_decoding.py translation/data/test_batching.py \
  translation/test_model.py translation/test_translator.py distributed/test_context_parallel.py \
  huggingface/test_watching.py viewer/test_heatmaps.py

# timm and open_clip require torchvision, which does not load together with the CPU build of torch. They have an
# environment with the newest torch in its default build, whose version is therefore not in constraints.txt.
VISION := .venv-vision
VISION_READY := $(VISION)/.ready
VISION_PACKAGES := torch torchvision timm open_clip_torch
VISION_IMPORTS := torch torchvision timm open_clip transformers diffusers clearhead
# a selection of the core tests, which shows that clearhead works with the newest torch
VISION_CORE := watching ops/test_attention.py weights/test_statistics.py weights/test_indexing.py nn/test_attention.py \
  test_torch_compat.py huggingface/test_attention_function.py

# The newest releases of everything, without pins: releases of other projects must not stop .ci/run, so it does not run
# these tests. A library that is newer than the tested versions causes a warning, which is not an error here.
NEWEST := .venv-newest
NEWEST_READY := $(NEWEST)/.ready
NEWEST_WARNING := clearhead was tested with

# vLLM requires one version of torch and of transformers; the page for users has the commands
VLLM := .venv-vllm
VLLM_READY := $(VLLM)/.ready
VLLM_PAGE := docs/how-to/vllm.md

.NOTPARALLEL:
.PHONY: help demo test test-core test-all test-more test-pins test-javascript test-slow test-shapes test-cpus test-vision test-newest test-vllm chromium lint docs docs-serve bench release-check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      write a worked example and a report to demo/, then serve the viewer"
	@echo "make test      lint, check types, run the core tests"
	@echo "make test-all  make test, and slow tests, browsers, real models, the wheel, other CPUs"
	@echo "make test-vision  run the tests of timm and open_clip with the newest torch, in .venv-vision (downloads 3 GB)"
	@echo "make test-newest  run the core and Hugging Face tests with the newest releases, in .venv-newest (downloads 3 GB)"
	@echo "make test-vllm  run the tests with a vLLM server on the CPU, in .venv-vllm (downloads 4 GB)"
	@echo "make docs      build the documentation into site/"
	@echo "make bench     run the CPU benchmarks"
	@echo "make release-check  build dist/, install it with each extra in new environments, run every command there"
	@echo "make clean     delete .venv and everything that was built"

# `make test` installs what the demo needs, and more
demo: $(if $(wildcard $(READY)),$(READY),$(DEMO_READY))
	@$(BIN)/python examples/demo.py demo

test: lint test-core

test-core: $(READY)
	$(PYTEST) $(PARALLEL)

test-all: test test-more

# what `make test` leaves out; requires Debian's chromium and the network
test-more: chromium test-javascript test-slow test-shapes test-cpus

# TypeScript checks the JSDoc types of the viewer's scripts; npm downloads it once
test-javascript: $(READY)
	$(BIN)/python tests/javascript/check_types.py

test-slow: chromium $(READY)
	$(PYTEST) $(PARALLEL) -rs -m "slow or browser or pretrained or attack or wheel"

test-shapes: $(READY)
	PYTHONPATH=tests/support $(PYTEST) $(PARALLEL) $(SHAPES:%=tests/%) -k "not reject and not refuse and not compiled" \
	  --jaxtyping-packages=clearhead,typechecking.check --hypothesis-profile=shapes \
	  -W ignore::hypothesis.errors.HypothesisDeprecationWarning  # beartype draws which items of a list it checks

test-cpus: $(READY)
	@for setting in $(CPU_SETTINGS); do \
	  echo "numerics with $$setting"; \
	  env $$setting OMP_WAIT_POLICY=passive $(PYTEST) $(PARALLEL) $(NUMERICS:%=tests/%) || exit 1; \
	done

test-vision: $(VISION_READY)
	@for package in $(VISION_IMPORTS); do \
	  $(VISION)/bin/python -c "import $$package; print('$$package', getattr($$package, '__version__', ''))" \
	    || { echo "make test-vision: $$package cannot be imported in $(VISION); delete the folder and try again" >&2; exit 1; }; \
	done
	$(VISION)/bin/python -m pytest -q -rs -m vision tests/vision
	$(VISION)/bin/python -m pytest -q $(PARALLEL) $(VISION_CORE:%=tests/%)

$(VISION_READY): pyproject.toml constraints.txt Makefile
	@test -n "$(PYTHON)" || { echo "clearhead needs Python 3.11 or newer: apt-get install python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VISION)
	@grep -Ev '^(torch==|triton==|nvidia-|cuda-)' constraints.txt > $(VISION)/constraints.txt
	$(VISION)/bin/pip install --quiet --upgrade --constraint $(VISION)/constraints.txt $(VISION_PACKAGES) \
	  --editable '.[test]' \
	  || { echo "make test-vision: pip could not install $(VISION_PACKAGES); it needs the network and 10 GB" >&2; exit 1; }
	@touch $@

test-newest: export PIP_CONSTRAINT :=
test-newest: export PYTHONWARNINGS := ignore:$(NEWEST_WARNING)
test-newest: $(NEWEST_READY)
	$(NEWEST)/bin/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[test]' \
	  || { echo "make test-newest: pip could not install the newest releases; it needs the network and 10 GB" >&2; exit 1; }
	@$(NEWEST)/bin/pip list --format freeze | grep -E '^(torch|transformers|triton|diffusers|bokeh|numpy)='
	$(NEWEST)/bin/python -m pytest -q $(PARALLEL) -W "default:$(NEWEST_WARNING)"
	$(NEWEST)/bin/python -m pytest -q $(PARALLEL) -W "default:$(NEWEST_WARNING)" -m slow tests/huggingface tests/watching

$(NEWEST_READY):
	@test -n "$(PYTHON)" || { echo "clearhead needs Python 3.11 or newer: apt-get install python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(NEWEST)
	@touch $@

# the model is converted in .venv, because the transformers of the other environment does not read its file
test-vllm: $(READY) $(VLLM_READY)
	CLEARHEAD_VLLM_MODEL=$$($(BIN)/python tests/support/pretrained.py smollm2-bf16) \
	  $(VLLM)/bin/python -m pytest -q -rs -m vllm tests/vllm

$(VLLM_READY): pyproject.toml constraints.txt Makefile $(VLLM_PAGE)
	@test -n "$(PYTHON)" || { echo "clearhead needs Python 3.11 or newer: apt-get install python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VLLM)
	sed -n '/^```sh title="vLLM on a CPU"$$/,/^```$$/{//!p;}' $(VLLM_PAGE) > $(VLLM)/recipe.sh
	PATH="$(abspath $(VLLM))/bin:$$PATH" PIP_QUIET=1 sh -e $(VLLM)/recipe.sh \
	  || { echo "make test-vllm: the commands of $(VLLM_PAGE) failed; they need the network and 4 GB" >&2; exit 1; }
	$(VLLM)/bin/pip install --quiet pytest hypothesis
	@touch $@

# pip finds the versions of constraints.txt with every Python of this machine, without configuration of pip
test-pins: $(READY)
	$(BIN)/python tests/release/check_pins.py

chromium:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { echo "browser tests require a browser: apt-get install $(BROWSER_PACKAGES)" >&2; exit 1; }

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python benchmarks/attention_cpu.py
	$(BIN)/python benchmarks/native_cpu.py
	$(BIN)/python benchmarks/operators_cpu.py
	$(BIN)/python benchmarks/layer_cpu.py
	$(BIN)/python benchmarks/translation.py
	$(BIN)/python benchmarks/viewer_maps.py
	$(BIN)/python benchmarks/viewer_browser.py
	$(BIN)/python benchmarks/viewer_sessions.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/watch_training.py
	$(BIN)/python benchmarks/watch_cpu.py $$($(BIN)/python tests/support/pretrained.py smollm2)
	$(BIN)/python benchmarks/interventions_cpu.py $$($(BIN)/python tests/support/pretrained.py smollm2)
	$(BIN)/python benchmarks/huggingface_cpu.py $$($(BIN)/python tests/support/pretrained.py smollm2)

$(VENV)/.ready-%: pyproject.toml constraints.txt tools/set_up.py
	@test -n "$(PYTHON)" || { echo "clearhead needs Python 3.11 or newer: apt-get install python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "clearhead needs Python 3.11 or newer, and $(PYTHON) is older: apt-get install python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv is missing: apt-get install python3-venv" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "torch.compile needs a C++ compiler: apt-get install g++" >&2; exit 1; }
	@$(PYTHON) tools/set_up.py $(VENV) $*
	@touch $@

release-check: $(READY)
	$(BIN)/python tests/release/check_release.py

# The website of docs/, in site/. The variable hides an advertisement.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

docs-serve: $(READY)
	$(BIN)/mkdocs serve

clean:
	rm -rf $(VENV) $(VISION) $(NEWEST) $(VLLM) demo site dist tests/javascript/node_modules .coverage* .pytest_cache .ruff_cache .hypothesis
