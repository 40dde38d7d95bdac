// The arguments of `bindings.layers`.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffers.h"
#include "decoder.h"

// Arrays of a call, one after the other.
class Reader {
 public:
  explicit Reader(ffi::RemainingArgs arrays) : arrays_(arrays) {}

  ffi::AnyBuffer Array() { return *arrays_.get<ffi::AnyBuffer>(next_++); }

  template <class T>
  T* Data() { return static_cast<T*>(Array().untyped_data()); }

  // Null where there is none.
  template <class T>
  T* DataIf(bool there) { return there ? Data<T>() : nullptr; }

 private:
  ffi::RemainingArgs arrays_;
  size_t next_ = 0;
};

// What of a layer there is.
struct Parts {
  bool scales, qkv_bias, out_bias, feed_forward_bias, norm_bias;
  bool norms, out_norms, head_norms, gate;
};

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    Parts, StructMember<bool>("scales"), StructMember<bool>("qkv_bias"),
    StructMember<bool>("out_bias"), StructMember<bool>("feed_forward_bias"),
    StructMember<bool>("norm_bias"), StructMember<bool>("norms"),
    StructMember<bool>("out_norms"), StructMember<bool>("head_norms"),
    StructMember<bool>("gate"));

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    Sizes, StructMember<int64_t>("rows"), StructMember<int64_t>("length"),
    StructMember<int64_t>("features"), StructMember<int64_t>("heads"),
    StructMember<int64_t>("groups"), StructMember<int64_t>("channels"),
    StructMember<int64_t>("hidden"), StructMember<int64_t>("slots"),
    StructMember<int64_t>("nodes"));

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    Kind, StructMember<float>("epsilon"), StructMember<float>("query_scale"),
    StructMember<float>("cap"), StructMember<float>("residual_scale"),
    StructMember<bool>("plus_one"), StructMember<bool>("joint_norm"),
    StructMember<bool>("norm_of_sum"), StructMember<bool>("parallel"),
    StructMember<int64_t>("activation"));

template <class A, class W>
Layer<A, W> LayerOf(const Sizes& s, const Parts& has, Reader& rest) {
  const auto linear = [&](int64_t outputs, bool bias) {
    const W* weights = rest.Data<W>();
    const float* scales = rest.DataIf<float>(has.scales);
    return Linear<A, W>{weights, scales, rest.DataIf<A>(bias), outputs};
  };
  const auto norm = [&](bool there, bool bias) {
    const A* scale = rest.DataIf<A>(there);
    return Scale<A>{scale, rest.DataIf<A>(there && bias)};
  };
  Layer<A, W> layer;
  layer.attention_norm = norm(has.norms, has.norm_bias);
  layer.query = linear(s.queries(), has.qkv_bias);
  layer.key = linear(s.keys(), has.qkv_bias);
  layer.value = linear(s.keys(), has.qkv_bias);
  layer.query_norm = norm(has.head_norms, false);
  layer.key_norm = norm(has.head_norms, false);
  layer.out = linear(s.features, has.out_bias);
  layer.attention_out_norm = norm(has.out_norms, has.norm_bias);
  layer.feed_forward_norm = norm(has.norms, has.norm_bias);
  layer.gate = has.gate ? linear(s.hidden, has.feed_forward_bias)
                        : Linear<A, W>{};
  layer.up = linear(s.hidden, has.feed_forward_bias);
  layer.down = linear(s.features, has.feed_forward_bias);
  layer.feed_forward_out_norm = norm(has.out_norms, has.norm_bias);
  return layer;
}

// Of cosines and sines [2, planes, B, T] the last ones, as [B, T, planes].
inline std::vector<float> Turns(ffi::AnyBuffer x) {
  const int64_t planes = x.dimensions()[1];
  const int64_t tokens = x.dimensions()[2] * x.dimensions()[3];
  const float* from = static_cast<float*>(x.untyped_data()) + planes * tokens;
  std::vector<float> turns(planes * tokens);
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t t = 0; t < tokens; ++t) {
      turns[t * planes + plane] = from[plane * tokens + t];
    }
  }
  return turns;
}

// x [n, F], of which the first ones are tokens, and in which slot of the block
// these begin; then of each view cosines and sines [2, planes, B, T] and masks
// [B, 1 or T, S] and [B, T, N]; of each layer keys [B, H, C, S] and values [B,
// H, S, C] of the cache, then of the block, which are results as well; and its
// parameters -> x, and an array to compute in
template <class A, class W>
void Decode(ffi::ThreadPool pool, const Sizes& sizes, const Kind& kind,
            const Parts& parts, ffi::Span<const int64_t> views, int64_t slot,
            ffi::AnyBuffer x, Reader rest, void* y, float* scratch) {
  std::vector<std::vector<float>> turns;
  std::vector<View> seen;
  for (int64_t i = *std::max_element(views.begin(), views.end()); i >= 0; --i) {
    turns.push_back(Turns(rest.Array()));
    turns.push_back(Turns(rest.Array()));
    const auto prefix = rest.Array();
    seen.push_back({turns.end()[-2].data(), turns.back().data(),
                    static_cast<uint8_t*>(prefix.untyped_data()),
                    rest.Data<uint8_t>(), prefix.dimensions()[1],
                    static_cast<int64_t>(turns.back().size()) /
                        sizes.tokens()});
  }
  std::vector<Memory<A>> memories;
  for (size_t i = 0; i < views.size(); ++i) {
    // In this order, which is not that of arguments.
    memories.push_back({});
    Memory<A>& memory = memories.back();
    memory.prefix_keys = rest.Data<A>(), memory.prefix_values = rest.Data<A>();
    memory.keys = rest.Data<A>(), memory.values = rest.Data<A>();
    memory.slot = slot;
  }
  Team team(pool);
  Decoder<A, W> decoder(team, sizes, kind, scratch);
  decoder.Begin(static_cast<const A*>(x.untyped_data()));
  for (size_t i = 0; i < views.size(); ++i) {
    decoder.Through(LayerOf<A, W>(sizes, parts, rest), memories[i],
                    seen[views[i]]);
  }
  A* result = static_cast<A*>(y);
  decoder.End(result);
  std::fill(result + sizes.tokens() * sizes.features,
            result + x.element_count(), A());
}

// Of `type` are all matrices.
inline ffi::Error LayersOf(ffi::ThreadPool pool, ffi::AnyBuffer x,
                           ffi::Buffer<ffi::S32> slot, ffi::AnyBuffer type,
                           ffi::RemainingArgs rest,
                           ffi::Result<ffi::AnyBuffer> y,
                           ffi::ResultBuffer<ffi::F32> scratch,
                           ffi::RemainingRets, const Sizes& sizes,
                           const Kind& kind, const Parts& parts,
                           ffi::Span<const int64_t> views) {
  if (static_cast<int64_t>(scratch->element_count()) <
      Decoder<float, float>::Scratch(sizes)) {
    return ffi::Error::InvalidArgument("there is not enough room");
  }
  ffi::Error error = ffi::Error::Success();
  const auto known = OfBoth(x, type, [&](auto numbers, auto matrix) {
    using A = Pointed<decltype(numbers)>;
    using W = Pointed<decltype(matrix)>;
    if constexpr (sizeof(W) <= sizeof(A)) {
      const int64_t first = std::clamp<int64_t>(*slot.typed_data(), 0,
                                                sizes.nodes - sizes.length);
      Decode<A, W>(pool, sizes, kind, parts, views, first, x, Reader(rest),
                   y->untyped_data(), scratch->typed_data());
    } else {
      error = ffi::Error::InvalidArgument("weights have too many bits");
    }
  });
  return known.failure() ? known : error;
}
