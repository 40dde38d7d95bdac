// What products of rows and columns are sums of.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

// Numbers that are multiplied at a time: one for each lane.
template <class X>
struct Terms {
  static constexpr int count = kLanes;
  using Some = Vector;

  template <class T>
  static Some Of(const T* from) { return Load(from); }
  template <class T>
  static Some First(const T* from, int64_t size) {
    return LoadFirst(from, size);
  }
  static Vector Add(Vector sums, Some x, Some y) {
    return Fused(sums, x, y);
  }
};

#if defined(__AVX512BF16__)
constexpr bool kDots = true;

// Of bfloat16 two for each lane, which adds both products: half as many
// instructions, and none to convert.
template <>
struct Terms<uint16_t> {
  static constexpr int count = 2 * kLanes;
  using Some = __m512bh;

  static Some Of(const uint16_t* from) { return Bits<Some>(from); }
  // Whole numbers of 8 bits are numbers of bfloat16.
  static Some Of(const int8_t* from) {
    return _mm512_cvtne2ps_pbh(__m512(Load(from + kLanes)),
                               __m512(Load(from)));
  }
  template <class T>
  static Some First(const T* from, int64_t size) {
    T first[count] = {};
    std::memcpy(first, from, size * sizeof(T));
    return Of(first);
  }
  static Vector Add(Vector sums, Some x, Some y) {
    return Vector(_mm512_dpbf16_ps(__m512(sums), x, y));
  }
};
#else
constexpr bool kDots = false;
#endif

// As what activations of type A are multiplied with weights of type W: as they
// are where there are instructions for it, or as float32.
template <class A, class W>
using ColumnOf = std::conditional_t<kDots && sizeof(W) <= sizeof(A), A, float>;
