// What this CPU can run, and the tables of each instruction set.
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "linear/linear.h"
#include "linear/split.h"
#include "simd/probes.h"

namespace fewbit {

extern const SimdProbes kPortableProbes;
extern const LinearKernels kPortableKernels;
extern const WeightOnlyKernels kPortableWeightOnly;
#if defined(__x86_64__)
extern const SimdProbes kAvx2Probes;
extern const SimdProbes kAvx512Probes;
extern const LinearKernels kAvx2Kernels;
extern const LinearKernels kAvx512Kernels;
extern const LinearKernels kAmxKernels;
extern const SplitKernels kAmxSplit;
extern const WeightOnlyKernels kAvx2WeightOnly;
extern const WeightOnlyKernels kAvx512WeightOnly;
#elif defined(__aarch64__)
extern const SimdProbes kNeonProbes;
extern const LinearKernels kNeonKernels;
#endif

namespace {

#if defined(__x86_64__)
// CPUID 1: ECX bit 29. Clang before 18 does not know the feature by name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// CPUID 7.0: EDX bit 22 is amx-bf16, bit 24 amx-tile, bit 25 amx-int8. Linux hands out the 8 KB of
// tile state only to a process that asked (arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA).
bool has_amx() {
#if defined(__linux__)
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool tiles = ((d >> 22) & 13u) == 13u;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return tiles && has_avx512_vnni() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
// Linux tells of the dot products in bit 20 of AT_HWCAP; every Mac with an ARM processor has them.
bool has_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20) & 1u;
#else
  return true;
#endif
}
#endif

}  // namespace

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
#if defined(__x86_64__)
    case Isa::kAvx2: {
      static const bool available = has_avx2();
      return available;
    }
    case Isa::kAvx512Vnni: {
      static const bool available = has_avx512_vnni();
      return available;
    }
    case Isa::kAmx: {
      static const bool available = has_amx();
      return available;
    }
#elif defined(__aarch64__)
    case Isa::kNeon: {
      static const bool available = has_dot_products();
      return available;
    }
#endif
    default:
      return false;
  }
}

const LinearKernels& linear_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512Kernels;
    case Isa::kAmx:
      return kAmxKernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
#endif
    default:
      return kPortableKernels;
  }
}

const WeightOnlyKernels& weight_only_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2WeightOnly;
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAvx512WeightOnly;
#endif
    default:
      return kPortableWeightOnly;
  }
}

const SplitKernels* split_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return &kAmxSplit;
#endif
  (void)isa;
  return nullptr;
}

const SimdProbes& simd_probes(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Probes;
    case Isa::kAvx512Vnni:
    case Isa::kAmx:
      return kAvx512Probes;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonProbes;
#endif
    default:
      return kPortableProbes;
  }
}

}  // namespace fewbit
