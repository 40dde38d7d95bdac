// What XLA calls.

#include <cstdint>
#include <vector>

#include "attention.h"
#include "product.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Calls a function with a pointer to numbers of the buffer's type.
template <class Function>
ffi::Error OfType(ffi::AnyBuffer buffer, Function function) {
  const void* data = buffer.untyped_data();
  switch (buffer.element_type()) {
    case ffi::F32: function(static_cast<const float*>(data)); break;
    case ffi::BF16: function(static_cast<const uint16_t*>(data)); break;
    case ffi::S8: function(static_cast<const int8_t*>(data)); break;
    default: return ffi::Error::InvalidArgument("no such type of weights");
  }
  return ffi::Error::Success();
}

// kernel [out, in], x [width, in] -> [out, width]
ffi::Error ProductOf(ffi::ThreadPool pool, ffi::AnyBuffer kernel,
                     ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = kernel.dimensions();
  return OfType(kernel, [&](auto weights) {
    Product(pool, weights, x.typed_data(), y->typed_data(), sizes[0], sizes[1],
            x.dimensions()[0]);
  });
}

// q [B, H, G, T, C]; then of each stretch keys [B, H, C, s], values [B, H, s,
// C] and a mask [B, T or 1, s] -> [B, H, G, T, C]
ffi::Error AttentionOf(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q,
                       ffi::RemainingArgs rest, ffi::ResultBuffer<ffi::F32> y,
                       float cap) {
  const auto sizes = q.dimensions();
  const int64_t heads = sizes[1], groups = sizes[2], length = sizes[3];
  const int64_t channels = sizes[4], part = groups * length * channels;
  const float* queries = q.typed_data();
  float* result = y->typed_data();
  std::vector<ffi::AnyBuffer> arrays;
  for (size_t i = 0; i < rest.size(); ++i) {
    arrays.push_back(*rest.get<ffi::AnyBuffer>(i));
  }
  return OfType(arrays[0], [&](auto first) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(first)>>;
    auto of_head = [=](int64_t index) {
      std::vector<Stretch<T>> stretches;
      for (size_t i = 0; i < arrays.size(); i += 3) {
        const auto mask = arrays[i + 2].dimensions();
        const int64_t rows = mask[1], slots = mask[2];
        const auto at = [&](int j) {
          return static_cast<const T*>(arrays[i + j].untyped_data()) +
                 index * slots * channels;
        };
        const auto* seen =
            static_cast<const uint8_t*>(arrays[i + 2].untyped_data());
        stretches.push_back({at(0), at(1),
                             seen + index / heads * rows * slots, slots, rows});
      }
      Head<T>(std::move(stretches), groups, length, channels, cap)
          .Attend(queries + index * part, result + index * part);
    };
    Share(pool, sizes[0] * heads, 1, [=](int64_t from, int64_t to) {
      for (; from < to; ++from) of_head(from);
    });
  });
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    product, ProductOf,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::AnyBuffer>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    attention, AttentionOf,
    ffi::Ffi::Bind()
        .Ctx<ffi::ThreadPool>()
        .Arg<ffi::Buffer<ffi::F32>>()
        .RemainingArgs()
        .Ret<ffi::Buffer<ffi::F32>>()
        .Attr<float>("cap"));
