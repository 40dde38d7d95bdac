// Arrays of XLA, by the types that there is code for.

#pragma once

#include <cstdint>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// What a pointer points to.
template <class Pointer>
using Pointed = std::remove_const_t<std::remove_pointer_t<Pointer>>;

// A buffer's numbers if they are of a type; else null.
template <class T>
T* As(ffi::DataType type, ffi::AnyBuffer buffer) {
  if (buffer.element_type() != type) return nullptr;
  return static_cast<T*>(buffer.untyped_data());
}

// Calls a function with a pointer to numbers of the buffer's type.
template <class Function>
ffi::Error OfFloats(ffi::AnyBuffer buffer, Function function) {
  const void* data = buffer.untyped_data();
  switch (buffer.element_type()) {
    case ffi::F32: function(static_cast<const float*>(data)); break;
    case ffi::BF16: function(static_cast<const uint16_t*>(data)); break;
    default: return ffi::Error::InvalidArgument("no code for the type");
  }
  return ffi::Error::Success();
}

// The same, of weights, which may have 8 bits, or 4: two in a byte.
template <class Function>
ffi::Error OfWeights(ffi::AnyBuffer buffer, Function function) {
  switch (buffer.element_type()) {
    case ffi::S8: function(As<const int8_t>(ffi::S8, buffer)); break;
    case ffi::U8: function(As<const uint8_t>(ffi::U8, buffer)); break;
    default: return OfFloats(buffer, function);
  }
  return ffi::Error::Success();
}

// Calls a function with pointers to numbers and to weights.
template <class Function>
ffi::Error OfBoth(ffi::AnyBuffer numbers, ffi::AnyBuffer weights,
                  Function function) {
  ffi::Error inner = ffi::Error::Success();
  const auto outer = OfFloats(numbers, [&](auto x) {
    inner = OfWeights(weights, [&](auto w) { function(x, w); });
  });
  return outer.failure() ? outer : inner;
}
