#!/usr/bin/env bash
# usage: native/tests/sanitize.sh address|thread
# Builds the native core with AddressSanitizer and UBSan, or with ThreadSanitizer, into a virtual
# environment of its own (build/sanitize/KIND), and runs there the tests that reach native code.
# No suppressions: one that matched every Python frame once hid a planted race.
set -euo pipefail
cd "$(dirname "$0")/../.."

kind=$1
place=$PWD/build/sanitize/$kind
compiler=${CXX:-g++}
before=()
mentions='fewbit import _native|fewbit\._native|runtime\.(native|chooser|pack)|model\.runner|native_cases|fewbit\.sampling'

case $kind in
  address)
    libraries="libasan.so libstdc++.so"
    faults="read_beyond_the_end:heap-buffer-overflow overflow_an_integer:signed.integer.overflow"
    ;;
  thread)
    # Threads meet in the executor, the engine above it and the solvers; kernels share nothing.
    libraries="libtsan.so"
    before=(setarch --addr-no-randomize) # GCC 12's cannot map around all that Linux may choose
    faults="race_in_a_pool:data.race"
    mentions='runtime\.native|native_cases|model\.runner|methods\.(gptq|refine|tiles)'
    ;;
  *)
    echo "sanitize.sh: '$kind' is no kind of sanitizer; choose address or thread." >&2
    exit 2
    ;;
esac

preload=""
for library in $libraries; do
  found=$("$compiler" -print-file-name="$library")
  if [ ! -e "$found" ]; then
    echo "sanitize.sh: $compiler has no $library; install GCC's sanitizer libraries." >&2
    exit 2
  fi
  preload+="$found "
done

[ -x "$place/bin/pip" ] || ${PYTHON:-python3} -m venv "$place"
# Without build isolation, so that a second build compiles only what has changed.
"$place/bin/pip" install --quiet scikit-build-core nanobind cmake ninja
"$place/bin/pip" install --quiet --no-build-isolation '.[test]' \
  --config-settings=cmake.define.FEWBIT_SANITIZE="$kind" \
  --config-settings=install.strip=false \
  --config-settings=build-dir="build/sanitize/$kind-objects"

# Leaks: CPython never frees what lives until its exit, so every run would report some. The core
# owns memory through unique_ptr, shared_ptr and vector only, and the tests bound what it keeps.
# A request for more memory than there is must fail as without a sanitizer.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
# Other libraries' threads are compiled without a sanitizer, which then sees races in them.
export TOKENIZERS_PARALLELISM=false OPENBLAS_NUM_THREADS=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

run() {
  LD_PRELOAD=$preload ${before[@]+"${before[@]}"} "$place/bin/python" "$@"
}

for fault in $faults; do
  name=${fault%%:*} report=${fault#*:}
  if output=$(run -c "import _planted; _planted.$name()" 2>&1) || ! grep -q "$report" <<< "$output"; then
    echo "sanitize.sh: the planted fault $name was not reported as $report:" >&2
    echo "$output" >&2
    exit 1
  fi
done

# These bound the process's memory. A sanitizer takes terabytes of address space and keeps what was
# freed, and its operator new ends the process where the language's throws.
bounded=(the_system_does_not_give weights_and_stores_beyond_memory
  a_step_beyond_memory a_refused_block leave_no_threads_and_no_memory)
# The thread sanitizer cannot follow threads that the child of a fork starts.
if [ "$kind" = thread ]; then bounded+=(the_child_of_a_fork); fi
left_out=$(printf ' or %s' "${bounded[@]}")

mapfile -t tests < <(grep -lE "$mentions" tests/test_*.py)
# A report goes to the process's own stderr, which pytest must leave alone.
run -m pytest --capture sys --timeout 900 -k "not (${left_out# or })" "${tests[@]}"
