// Weights in groups of inputs: numbers of 8 or 4 bits, each times a scale of
// its group and more by its least number.
//
// Some rows at a time become numbers of the activations' type nearby, which are
// multiplied as any others.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "factor.h"
#include "norm.h"
#include "simd.h"

// Inputs that are widened together, half of those of 16 bytes of 4 bits.
constexpr int64_t kHalves = 16;

// Bytes of a row of weights.
template <class T>
int64_t RowBytes(int64_t inputs) {
  return std::is_same_v<T, uint8_t> ? inputs / 2 : inputs * sizeof(T);
}

// Numbers of 16 bits with 5 for the exponent.
inline Vector Halves(const uint16_t* from) {
  const auto bits = Widen(from), size = bits & 0x7fff;
  const Vector usual = Vector((size << 13) + (112 << 23));
  const Vector small = __builtin_convertvector(size, Vector) * 0x1p-24f;
  const Vector all = size < 0x400 ? small : usual;
  return Vector(Full<int32_t>(all) | ((bits & 0x8000) << 16));
}

// Scales of groups as float32, or zeros where there are none.
inline void CopyScales(const Groups& groups, const void* from, int64_t first,
                       int64_t count, float* to) {
  if (from == nullptr) {
    std::fill_n(to, count, 0.f);
  } else if (!groups.have_16_bits) {
    std::copy_n(static_cast<const float*>(from) + first, count, to);
  } else {
    const auto* halves = static_cast<const uint16_t*>(from) + first;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      __builtin_prefetch(halves + i + count);
      Store(to + i, Halves(halves + i));
    }
    uint16_t last[kLanes] = {};
    std::copy_n(halves + i, count - i, last);
    StoreFirst(to + i, Halves(last), count - i);
  }
}

#if defined(__AVX512F__)
// All numbers of 4 bits.
inline Vector Counted() {
  return Vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
#endif

#if defined(__AVX512VBMI__)
// Where bytes of 16 go: to a word each, twice.
inline __m512i Bytes() {
  alignas(64) static constexpr struct Table {
    uint8_t from[64] = {};
    constexpr Table() {
      for (int i = 0; i < 64; ++i) from[i] = i / 2 % kHalves;
    }
  } table;
  return Bits<__m512i>(table.from);
}

// How far words are shifted: those of the second half by 4 bits.
inline __m512i UpperHalves() {
  return _mm512_maskz_set1_epi16(0xffff0000, 4);
}
#endif

// A number of a type A, where numbers of X go.
template <class A, class X>
void StoreAs(X* to, Vector x) {
  Store(to, RoundedNumbers(static_cast<const A*>(nullptr), x));
}

// The numbers of a group of 8 bits.
template <class A, class X>
void Widened(const int8_t* w, int64_t size, float scale, float least, X* to) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<A, uint16_t> && std::is_same_v<X, uint16_t>) {
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      const auto some = [=](int64_t i) {
        return __m512(Load(w + i) * scale + least);
      };
      const auto all = _mm512_cvtne2ps_pbh(some(i + kLanes), some(i));
      std::memcpy(to + i, &all, sizeof all);
    }
  }
#endif
  for (; i < size; i += kLanes) {
    StoreAs<A>(to + i, Load(w + i) * scale + least);
  }
}

// The same of 4 bits: a byte has one number in its lower half, and in its upper
// half the one 16 later.
template <class A, class X>
void Widened(const uint8_t* w, int64_t, float scale, float least, X* to) {
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
  if constexpr (std::is_same_v<A, uint16_t> && std::is_same_v<X, uint16_t>) {
    // Both halves are a table of what the 16 numbers are: of an index five bits
    // count.
    const auto every = __m512(Counted() * scale + least);
    const auto table = __m512i(_mm512_cvtne2ps_pbh(every, every));
    const auto bytes = _mm512_maskz_broadcast_i32x4(kAll, Bits<__m128i>(w));
    const auto words = _mm512_maskz_permutexvar_epi8(~0ull, Bytes(), bytes);
    const auto index = _mm512_maskz_srlv_epi16(~0u, words, UpperHalves());
    const auto all = _mm512_maskz_permutexvar_epi16(~0u, index, table);
    std::memcpy(to, &all, sizeof all);
    return;
  }
#endif
#if defined(__AVX512F__)
  const auto table = __m512(Counted() * scale + least);
  const auto index = __m512i(Widen(w));
  const auto chosen = [=](__m512i index) {  // Four bits of an index count.
    return Vector(_mm512_maskz_permutexvar_ps(kAll, index, table));
  };
  StoreAs<A>(to, chosen(index));
  StoreAs<A>(to + kHalves, chosen(_mm512_maskz_srli_epi32(kAll, index, 4)));
  return;
#endif
  for (int64_t i = 0; i < kHalves; i += kLanes) {
    const auto bytes = Widen(w + i);
    const auto scaled = [=](auto x) {
      return __builtin_convertvector(x, Vector) * scale + least;
    };
    StoreAs<A>(to + i, scaled(bytes & 15));
    StoreAs<A>(to + i + kHalves, scaled(bytes >> 4));
  }
}

// Rows of a matrix rounded to the type A, nearby. Those at `next` are wanted
// after them.
template <class A, class X, class T>
const X* InGroups(const Factor<T>& factor, int64_t from, int64_t rows,
                  int64_t inputs, const T* next) {
  const Groups& groups = factor.groups;
  const int64_t count = rows * groups.number, size = inputs / groups.number;
  const int64_t bytes =
      std::is_same_v<T, uint8_t> ? kHalves : RowBytes<T>(size);
  float* scales = Near<kScales, float>(2 * count);
  float* least = scales + count;
  CopyScales(groups, groups.scales, from * groups.number, count, scales);
  CopyScales(groups, groups.least, from * groups.number, count, least);
  X* near = Near<kGroups, X>(rows * inputs);
  const T* w = factor.w + from * RowBytes<T>(inputs);
  const auto widen = [=](int64_t g) {
    Widened<A>(w + g * bytes, size, scales[g], least[g], near + g * size);
  };
  // Groups of a line of a core's cache, which knows what comes next by then.
  constexpr int64_t each = std::is_same_v<T, uint8_t> ? 64 / kHalves : 1;
  int64_t g = 0;
  for (; g + each <= count; g += each) {
    __builtin_prefetch(next + g * bytes, 0, 2);
#pragma GCC unroll 4
    for (int64_t i = 0; i < each; ++i) widen(g + i);
  }
  for (; g < count; ++g) widen(g);
  return near;
}
