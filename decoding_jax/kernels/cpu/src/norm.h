// Normalisation by the root of the mean square.

#pragma once

#include <cmath>
#include <cstdint>

#include "simd.h"

// Numbers that a core takes at a time, at least.
constexpr int64_t kNumbers = 1 << 14;

// What the type of a pointer has of these numbers.
inline Vector Rounded(const float*, Vector x) { return x; }

// The same of numbers, and of what is no number by arithmetic: the upper half
// of its bits says so.
inline Vector RoundedNumbers(const float*, Vector x) { return x; }

inline Vector RoundedNumbers(const uint16_t*, Vector x) {
  const auto bits = Full<uint32_t>(x);
  const auto rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return Vector(rounded & 0xffff0000);
}

inline Vector Rounded(const uint16_t* like, Vector x) {
  return x == x ? RoundedNumbers(like, x) : x;
}

// y = f(x...), number by number; y may be one of them.
template <class Function, class To, class... From>
void Combine(To* y, int64_t size, Function f, const From*... x) {
  const int64_t whole = size / kLanes * kLanes, left = size - whole;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Store(y + i, Rounded(y, f(Load(x + i)...)));
  }
  if (left) {
    StoreFirst(y + whole, Rounded(y, f(LoadFirst(x + whole, left)...)), left);
  }
}

inline Vector Same(Vector x) { return x; }

inline Vector Plus(Vector x, Vector y) { return x + y; }

inline Vector Times(Vector x, Vector y) { return x * y; }

// x y / (1 + e^-x), of an exponential that is at most 1.
inline Vector Swiglu(Vector x, Vector y) {
  const Vector less = Exp(x < 0 ? x : -x);
  return x * y * (x < 0 ? less : Vector{} + 1) / (1 + less);
}

// y = x / sqrt(mean(x^2) + epsilon), rounded as the scale, times the scale; or
// not rounded, times one more than the scale.
template <class N, class T>
void Norm(const N* x, const T* scale, N* y, int64_t size, float epsilon,
          bool plus_one) {
  const int64_t whole = size / kLanes * kLanes, left = size - whole;
  Vector squares[1] = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vector lanes = Load(x + i);
    squares[0] += lanes * lanes;
  }
  if (left) {
    const Vector lanes = LoadFirst(x + whole, left);
    squares[0] += lanes * lanes;
  }
  float sum[1];
  Sums(squares, sum);
  const float factor = 1 / std::sqrt(sum[0] / size + epsilon);
  const auto scaled = [=](Vector lanes, Vector scales) {
    const Vector normal = lanes * factor;
    return Rounded(scale, plus_one ? normal * (scales + 1)
                                   : Rounded(scale, normal) * scales);
  };
  for (int64_t i = 0; i < whole; i += kLanes) {
    Store(y + i, scaled(Load(x + i), Load(scale + i)));
  }
  if (left) {
    StoreFirst(y + whole, scaled(LoadFirst(x + whole, left),
                                 LoadFirst(scale + whole, left)), left);
  }
}
