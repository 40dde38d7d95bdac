// What is multiplied, and where products go.

#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "simd.h"

// Where products go: those of a column stand in a row.
struct Result {
  float* data;
  int64_t outputs;

  float& operator()(int64_t row, int64_t column) const {
    return data[row + column * outputs];
  }
  Result From(int64_t row, int64_t column) const {
    return {&(*this)(row, column), outputs};
  }
};

// Of weights in groups of inputs what is multiplied and added, [out, number]
// each; see groups.h. Others have none.
struct Groups {
  const void *scales = nullptr, *least = nullptr;
  int64_t number = 0;
  bool have_16_bits = false;
};

// A matrix, and where its products go.
template <class T>
struct Factor {
  const T* w;
  Result y;
  Groups groups = {};
};

// What arrays of a thread are for.
enum { kWeights, kInputs, kUnits, kSums, kScales, kGroups };

// An array of this thread, one for each purpose. It begins where a line of a
// core's cache does, as XLA's arrays: registers that lie in two are slow.
template <int purpose, class X>
X* Near(int64_t size) {
  thread_local std::vector<Vector> lanes;
  // What it has lost it would have as zeros again.
  const size_t needed = size * sizeof(X) / sizeof(Vector) + 1;
  if (lanes.size() < needed) lanes.resize(needed);
  return reinterpret_cast<X*>(lanes.data());
}

// Numbers as those of type X.
template <int purpose, class X, class T>
const X* Converted(const T* x, int64_t size) {
  if constexpr (std::is_same_v<T, X>) {
    return x;
  } else {
    X* near = Near<purpose, X>(size);
    Copy(x, size, near);
    return near;
  }
}
