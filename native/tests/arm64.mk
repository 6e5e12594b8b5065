# make -f native/tests/arm64.mk [bits|sources]
# Compiles the native core for 64-bit ARM and, under emulation, compares the NEON kernels with the
# portable ones. Emulation shows the bits, not the speed, and is no test of hardware.
ARM_CXX := aarch64-linux-gnu-g++
ARM_RUN := qemu-aarch64-static
PYTHON ?= python3
OUT := build/arm64
DOT_PRODUCTS := -march=armv8.2-a+dotprod
FLAGS := -std=c++20 -O1 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -Inative/src -MMD

INCLUDED = -isystem $(OUT)/nanobind/nanobind/include \
  -isystem $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')

FOUND := $(shell command -v $(ARM_CXX))
SOURCES := $(filter-out %_avx2.cpp %_avx512.cpp %_amx.cpp, $(shell find native/src -name '*.cpp'))
CHECKED := $(SOURCES:native/src/%.cpp=$(OUT)/%.checked)
KERNELS := $(filter %/isa.cpp %/activations.cpp %_neon.cpp %_portable.cpp %/ops.cpp \
             %/row_kernels.cpp %/gram/kernels.cpp,$(SOURCES))
OBJECTS := $(KERNELS:native/src/%.cpp=$(OUT)/%.o)

.PHONY: bits sources
ifeq ($(FOUND),)
bits sources:
	@echo "The check for arm64 needs $(ARM_CXX); on Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static." >&2; exit 2
else

bits: sources $(OUT)/same_bits
	@command -v $(ARM_RUN) > /dev/null || { echo "The sources compile for arm64, but comparing bits needs $(ARM_RUN); on Debian: apt-get install qemu-user-static." >&2; exit 2; }
	$(ARM_RUN) $(OUT)/same_bits neon

sources: $(CHECKED)

$(OUT)/same_bits: $(OUT)/same_bits.o $(OBJECTS)
	$(ARM_CXX) -static -pthread -o $@ $^

$(OUT)/same_bits.o: native/tests/same_bits.cpp
	@mkdir -p $(@D)
	$(ARM_CXX) $(FLAGS) -c -o $@ $<

$(OUT)/%_neon.o: native/src/%_neon.cpp
	@mkdir -p $(@D)
	$(ARM_CXX) $(FLAGS) $(DOT_PRODUCTS) -c -o $@ $<

$(OUT)/%.o: native/src/%.cpp
	@mkdir -p $(@D)
	$(ARM_CXX) $(FLAGS) -c -o $@ $<

# Every source, the bindings with this machine's Python headers: 64-bit Linux has the sizes of types
# in common.
$(OUT)/%.checked: native/src/%.cpp $(OUT)/nanobind/nanobind/__init__.py
	@mkdir -p $(@D)
	$(ARM_CXX) $(FLAGS) -MF $(@:.checked=.checked.d) -MT $@ -fsyntax-only $(INCLUDED) \
	  $(if $(filter %_neon.cpp,$<),$(DOT_PRODUCTS)) $<
	@touch $@

$(OUT)/nanobind/nanobind/__init__.py:
	$(PYTHON) -m pip install --quiet --target $(OUT)/nanobind nanobind
	@touch $@

-include $(OBJECTS:.o=.d) $(CHECKED:=.d) $(OUT)/same_bits.d
endif
