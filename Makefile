# Every target makes its own virtual environment in .venv; nothing outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
MODEL := smollm2-135m
PEER := $(shell sed -n 's/.*"\(llama-cpp-python==[^"]*\)".*/\1/p' pyproject.toml)
# llama.cpp's AMX path, compiled by GCC 12, faults (docs/log.md); without it the library works.
PEER_FLAGS := $(if $(filter x86_64,$(shell uname -m)),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# `make bench LARGE=FILE` names Qwen2.5-Coder-1.5B-Instruct in Q4_K_M; rows without it say so.
VERSUS := $(BIN)/python benchmarks/versus.py $(if $(LARGE),--model-1.5b $(LARGE))

.PHONY: demo test test-interop test-report report-images check format clean
.PHONY: sanitize sanitize-thread check-arm64
.PHONY: bench bench-speed bench-engine bench-long bench-threads bench-start
.PHONY: bench-quality bench-quantize bench-speculation bench-gate

demo: .venv/installed  ## the main job: compress the embedded model, then generate with speculation
	$(BIN)/fewbit compress $(MODEL) --out demo
	$(BIN)/fewbit generate demo -p "Why is the sky blue?" --max-tokens 96 --draft ngram
	$(BIN)/fewbit eval demo --against $(MODEL) --html demo/evaluation.html

test: .venv/dev  ## the tests with light oracles (gguf, hypothesis)
	$(BIN)/python -m pytest

test-interop: .venv/interop  ## the tests against torch, transformers, compressed-tensors, llama.cpp
	$(BIN)/python -m pytest -m interop --timeout 600

test-report: .venv/dev  ## pages in headless Chromium: nothing fetched, charts drawn, phones, paper
	$(BIN)/python -m pytest -m browser tests/test_browser_report.py

report-images: .venv/dev  ## the README's screenshots, from a record (RECORD=evaluation.json)
	$(BIN)/python benchmarks/report_images.py $(RECORD)

check: .venv/dev  ## style, types, import floors, public names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	$(BIN)/python -m pytest tests/test_public.py

check-arm64:  ## the native core compiled for arm64, and NEON's bits under emulation
	$(MAKE) -f native/tests/arm64.mk PYTHON=$(PYTHON)

sanitize:  ## the native tests under AddressSanitizer and UBSan, in a build of its own
	PYTHON=$(PYTHON) native/tests/sanitize.sh address

sanitize-thread:  ## the executor's tests under ThreadSanitizer
	PYTHON=$(PYTHON) native/tests/sanitize.sh thread

format: .venv/dev  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

bench: .venv/interop  ## every figure: start, kernels, memory, and all rows against llama.cpp
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/engine.py
	$(VERSUS) --json build/benchmarks/versus.json

bench-speed: .venv/interop  ## one sequence: decoding, prompts, blocks of a few tokens
	$(VERSUS) small large

bench-engine: .venv/interop  ## many sequences, Python's share, a busy neighbour
	$(BIN)/python benchmarks/engine.py
	$(VERSUS) concurrent python neighbour

bench-long: .venv/interop  ## decoding behind 8,192 tokens with int8 keys and values
	$(VERSUS) long

bench-threads: .venv/interop  ## one thread and two
	$(VERSUS) threads

bench-start: .venv/interop  ## load to first token, from the start of the process
	$(VERSUS) start

# MIDDLE and LARGE name Qwen2.5-Coder 0.5B and 1.5B in Q4_K_M; what was made or measured is kept.
QUALITY = $(BIN)/python benchmarks/quality.py $(1) --folder build/benchmarks/$(2) \
	$(if $(DATA),--data $(DATA))

bench-quality: .venv/interop  ## divergence at equal bytes, beside llama.cpp (DATA=FOLDER MIDDLE= LARGE=)
	$(call QUALITY,methods solved activations tuned allocated --confirm 8,quality)
	$(call QUALITY,methods solved --only "gptq q4_0" "refined q4_0" --windows 160,quality)
	$(call QUALITY,methods --spread 0,quality-noise-only)
	$(if $(MIDDLE),$(call QUALITY,tuned-bits --model $(MIDDLE) --confirm 8,quality-middle))
	$(if $(LARGE),$(call QUALITY,bits --model $(LARGE) --windows 16 --confirm 8,quality-large))

bench-speculation: .venv/interop  ## speculation beside plain, beside llama.cpp (LARGE= MIDDLE= DATA=)
	$(BIN)/python benchmarks/speculation.py $(if $(LARGE),--large $(LARGE)) \
		$(if $(MIDDLE),--middle $(MIDDLE)) $(if $(DATA),--data $(DATA)/spec_bench) \
		--json build/benchmarks/speculation.json

bench-quantize: .venv/interop  ## GPTQ against torch, on a model's matrices, on a large layer
	$(BIN)/python benchmarks/solvers.py

bench-gate: .venv/dev  ## how often the gate errs, on good, marginal and planted-bad candidates
	$(BIN)/python benchmarks/gate.py --folder build/benchmarks/gate

clean:
	rm -rf .venv build demo

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/pip pyproject.toml $(NATIVE)
	$(BIN)/pip install --quiet -e .
	@touch $@

.venv/dev: .venv/bin/pip pyproject.toml $(NATIVE)
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@ .venv/installed

.venv/interop: .venv/dev
	$(BIN)/pip install --quiet torch==2.13.0
	CMAKE_ARGS="-DCMAKE_C_FLAGS='$(PEER_FLAGS)' -DCMAKE_CXX_FLAGS='$(PEER_FLAGS)'" \
		$(BIN)/pip install --quiet $(PEER)
	$(BIN)/pip install --quiet -e '.[interop]'
	@touch $@
