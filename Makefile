# `make demo` and `make test` set up everything they need in .venv; see README.md.
PYTHON ?= $(firstword $(foreach name,python3.11 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where torch comes from, if not from pip's own index: for example https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

# Some CPUs advertise AMX and then trap on it in bfloat16 products; AVX-512 is what they can do.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# CPU capabilities and thread counts that the tests of numerics have to pass with; "native" is whatever the CPU has.
CAPABILITIES := native avx2 default
THREADS := 1 2
NUMERICS := ops/test_attention weights nn test_torch_compat huggingface/test_attention_function huggingface/test_watching \
  translation/test_model analysis/test_corpus
MEMORY_KIB := 9000000

# Tests that run with jaxtyping's import hook, which checks shape annotations at run time; compiled graphs cannot contain
# such checks, and wrong input meets them before our own.
SHAPES := ops/test_masks weights nn/test_attention nn/test_kv_cache nn/test_positions nn/test_torch_weights recording \
  analysis/test_roles analysis/test_relations explain/test_tracing explain/test_checking translation/heads \
  translation/test_decoding translation/data/test_batching translation/test_model translation/test_translator \
  distributed/test_context_parallel huggingface/test_watching viewer/test_heatmaps

# Paths of test files and folders of them
paths = $(foreach name,$(1),tests/$(name)$(if $(findstring test_,$(name)),.py))

.PHONY: demo test test-all test-shapes test-cpus lint bench clean
.DEFAULT_GOAL := demo

demo: $(READY)
	@$(BIN)/python examples/demo.py demo

test: lint
	$(BIN)/python -m pytest -n 2 -q

# `make test`, and what takes longer: attacks with damaged files and hostile input, and the wheel in a new
# virtual environment.
test-all: test test-shapes
	$(BIN)/python -m pytest -n 2 -q -m attack
	$(BIN)/python -m pytest -q -m wheel -rs

test-shapes: $(READY)
	PYTHONPATH=tests $(BIN)/python -m pytest -n 2 -q $(call paths,$(SHAPES)) -k "not bad_input and not compiled" \
	  --jaxtyping-packages=clearhead,support.typechecking.check \
	  -W ignore::hypothesis.errors.HypothesisDeprecationWarning  # beartype draws which items of a list it checks

test-cpus: $(READY)
	@for capability in $(CAPABILITIES); do for threads in $(THREADS); do \
	  echo "ATEN_CPU_CAPABILITY=$$capability OMP_NUM_THREADS=$$threads"; \
	  ( ulimit -v $(MEMORY_KIB); unset ATEN_CPU_CAPABILITY; \
	    export OMP_NUM_THREADS=$$threads OMP_WAIT_POLICY=passive; \
	    [ $$capability = native ] || export ATEN_CPU_CAPABILITY=$$capability; \
	    $(BIN)/python -m pytest -q $(call paths,$(NUMERICS)) ) || exit 1; \
	done; done

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python benchmarks/attention_cpu.py
	$(BIN)/python benchmarks/layer_cpu.py
	$(BIN)/python benchmarks/translation.py
	$(BIN)/python benchmarks/viewer_maps.py
	$(BIN)/python benchmarks/viewer_browser.py
	$(BIN)/python benchmarks/viewer_sessions.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/huggingface_cpu.py $$($(BIN)/python tests/support/pretrained.py smollm2)

$(READY): pyproject.toml constraints.txt Makefile
	@test -n "$(PYTHON)" || { echo "clearhead needs Python 3.11 or newer: apt-get install python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "clearhead needs Python 3.11 or newer, and $(PYTHON) is older: apt-get install python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv is missing: apt-get install python3-venv" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "torch.compile needs a C++ compiler: apt-get install g++" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/pip install --quiet --index-url $(TORCH_INDEX) torch)
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis
