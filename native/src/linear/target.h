// What each stored format becomes: the codes and the scaling of its packed form.
#pragma once

#include <cstdint>

#include "linear/linear.h"
#include "linear/repack.h"

namespace fewbit {

struct Target {
  Codes codes;
  Scaling scaling;
};

inline Codes affine_codes(int bits) {
  switch (bits) {
    case 2:
      return Codes::kBits2;
    case 3:
      return Codes::kBits3;
    case 4:
      return Codes::kBits4;
    case 5:
      return Codes::kBits5;
    case 6:
      return Codes::kBits6;
    case 7:
      return Codes::kBits7;
    default:
      return Codes::kBits8;
  }
}

inline bool has_nested_form(Source source, int bits, bool asymmetric) {
  return source == Source::kQ8_0 || (source == Source::kAffine && bits == 8 && !asymmetric);
}

inline Target target_of(Source source, int bits, bool asymmetric, PackedAs form) {
  if (form == PackedAs::kNested) return {Codes::kNested8, Scaling::kSymmetric};
  switch (source) {
    case Source::kAffine:
      return {affine_codes(bits), asymmetric ? Scaling::kAsymmetric : Scaling::kSymmetric};
    case Source::kQ4_0:
      return {Codes::kBits4, Scaling::kSymmetric};
    case Source::kQ4_1:
      return {Codes::kBits4, Scaling::kMinimum};
    case Source::kQ5_0:
      return {Codes::kBits5, Scaling::kSymmetric};
    case Source::kQ5_1:
      return {Codes::kBits5, Scaling::kMinimum};
    case Source::kQ8_0:
      return {Codes::kBits8, Scaling::kSymmetric};
    case Source::kQ2_K:
      return {Codes::kBits2, Scaling::kTwoLevel16};
    case Source::kQ3_K:
      return {Codes::kBits3, Scaling::kSixBit16};
    case Source::kQ4_K:
      return {Codes::kBits4, Scaling::kTwoLevel};
    case Source::kQ5_K:
      return {Codes::kBits5, Scaling::kTwoLevel};
    case Source::kQ6_K:
      return {Codes::kBits6, Scaling::kSigned16};
    case Source::kIq4Nl:
      return {Codes::kIq4, Scaling::kSymmetric};
    case Source::kIq4Xs:
      return {Codes::kIq4, Scaling::kSixBit32};
    case Source::kMxfp4:
      return {Codes::kE2m1, Scaling::kExponent};
    case Source::kF32:
      return {Codes::kF32, Scaling::kNone};
    case Source::kF16:
      return {Codes::kF16, Scaling::kNone};
    case Source::kFp8E4m3:
      return {Codes::kF8E4m3, Scaling::kNone};
    default:
      return {Codes::kBf16, Scaling::kNone};
  }
}

inline int64_t group_of(Source source, int64_t affine_group) {
  return source == Source::kAffine ? affine_group : block_size(source);
}

// Calls f.template operator()<source, codes>() for an integer source.
template <class F>
void with_source(const StoredMatrix& m, F&& f) {
  switch (m.source) {
    case Source::kQ4_0:
      return f.template operator()<Source::kQ4_0, Codes::kBits4>();
    case Source::kQ4_1:
      return f.template operator()<Source::kQ4_1, Codes::kBits4>();
    case Source::kQ5_0:
      return f.template operator()<Source::kQ5_0, Codes::kBits5>();
    case Source::kQ5_1:
      return f.template operator()<Source::kQ5_1, Codes::kBits5>();
    case Source::kQ8_0:
      return f.template operator()<Source::kQ8_0, Codes::kBits8>();
    case Source::kQ2_K:
      return f.template operator()<Source::kQ2_K, Codes::kBits2>();
    case Source::kQ3_K:
      return f.template operator()<Source::kQ3_K, Codes::kBits3>();
    case Source::kQ4_K:
      return f.template operator()<Source::kQ4_K, Codes::kBits4>();
    case Source::kQ5_K:
      return f.template operator()<Source::kQ5_K, Codes::kBits5>();
    case Source::kQ6_K:
      return f.template operator()<Source::kQ6_K, Codes::kBits6>();
    case Source::kIq4Nl:
      return f.template operator()<Source::kIq4Nl, Codes::kIq4>();
    case Source::kIq4Xs:
      return f.template operator()<Source::kIq4Xs, Codes::kIq4>();
    case Source::kMxfp4:
      return f.template operator()<Source::kMxfp4, Codes::kE2m1>();
    default:
      break;
  }
  switch (m.bits) {
    case 2:
      return f.template operator()<Source::kAffine, Codes::kBits2>();
    case 3:
      return f.template operator()<Source::kAffine, Codes::kBits3>();
    case 4:
      return f.template operator()<Source::kAffine, Codes::kBits4>();
    case 5:
      return f.template operator()<Source::kAffine, Codes::kBits5>();
    case 6:
      return f.template operator()<Source::kAffine, Codes::kBits6>();
    case 7:
      return f.template operator()<Source::kAffine, Codes::kBits7>();
    default:
      return f.template operator()<Source::kAffine, Codes::kBits8>();
  }
}

}  // namespace fewbit
