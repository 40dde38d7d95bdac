// What XLA calls.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "buffers.h"
#include "commit.h"
#include "sampling.h"
#include "norm.h"
#include "product.h"
#include "xla/ffi/api/ffi.h"

using Pool = ffi::ThreadPool;
using ffi::AnyBuffer;
using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using U32 = ffi::Buffer<ffi::U32>;

template <class Function>
void EachRow(Pool pool, int64_t rows, Function function) {
  Team(pool).Share(rows, 1, [=](int64_t from, int64_t to, int64_t) {
    for (; from < to; ++from) function(from);
  });
}

// What weights in groups of inputs have besides, of one of `number` matrices.
Groups GroupsOf(ffi::RemainingArgs rest, size_t number, size_t i) {
  if (rest.size() == number) return {};
  const auto scales = *rest.get<AnyBuffer>(number + i);
  const void* least = rest.size() > 2 * number ?
      rest.get<AnyBuffer>(2 * number + i)->untyped_data() : nullptr;
  if (least == nullptr && scales.dimensions()[1] == 1) return {};
  return {scales.untyped_data(), least, scales.dimensions()[1],
          scales.element_type() == ffi::F16};
}

// Products of columns, activations of type A, with matrices. Of results of 16
// bits the sums are kept elsewhere.
template <class A, class T, class X>
void ProductsWith(Pool pool, const X* columns, int64_t width, int64_t inputs,
                  ffi::RemainingArgs rest, ffi::RemainingRets results) {
  const size_t number = results.size();
  std::vector<Factor<T>> factors;
  std::vector<const float*> scales(number);
  std::vector<uint16_t*> rounded;
  int64_t outputs = 0;
  for (size_t i = 0; i < number; ++i) {
    const auto kernel = *rest.get<AnyBuffer>(i);
    auto result = *results.get<AnyBuffer>(i);
    const Groups groups = GroupsOf(rest, number, i);
    if (rest.size() > number && !groups.number) {
      scales[i] = rest.get<F32>(number + i)->typed_data();
    }
    rounded.push_back(As<uint16_t>(ffi::BF16, *result));
    factors.push_back({static_cast<const T*>(kernel.untyped_data()),
                       {As<float>(ffi::F32, *result), kernel.dimensions()[0]},
                       groups});
    outputs += kernel.dimensions()[0];
  }
  float* sums = rounded[0] ? Near<kSums, float>(outputs * width) : nullptr;
  for (size_t i = 0; i < number && sums; ++i) {
    factors[i].y.data = sums;
    sums += factors[i].y.outputs * width;
  }
  const auto finish = [&](int i, int64_t from, int64_t to) {
    const Result& y = factors[i].y;
    for (int64_t t = 0; t < width; ++t) {
      float* all = &y(from, t);
      if (scales[i]) Combine(all, to - from, Times, all, scales[i] + from);
      if (rounded[i]) {
        Combine(rounded[i] + from + t * y.outputs, to - from, Same, all);
      }
    }
  };
  Team team(pool);
  if constexpr (sizeof(T) == 1) {
    if (factors[0].groups.number) {
      return GroupProducts<A>(team, factors, columns, inputs, width, finish);
    }
  }
  if constexpr (!std::is_same_v<T, uint8_t>) {
    Products(team, factors, columns, inputs, width, finish);
  }
}

// x [width, in], kernels [out, in] of one type, then of each, or of none,
// scales [out, groups] and least numbers -> [width, out] of each kernel, of 32
// or of 16 bits
ffi::Error ProductsOf(Pool pool, AnyBuffer x, ffi::RemainingArgs rest,
                      ffi::RemainingRets results) {
  const int64_t width = x.dimensions()[0], inputs = x.dimensions()[1];
  return OfBoth(x, *rest.get<AnyBuffer>(0),
                [&](auto numbers, auto weights) {
    using T = Pointed<decltype(weights)>;
    using A = Pointed<decltype(numbers)>;
    ProductsWith<A, T>(
        pool, Converted<kInputs, ColumnOf<A, T>>(numbers, width * inputs),
        width, inputs, rest, results);
  });
}

// x [...], y [...] -> a function of both, number by number
template <class Function>
ffi::Error EachNumber(Pool pool, AnyBuffer x, AnyBuffer y,
                      ffi::Result<AnyBuffer> z, Function function) {
  return OfFloats(x, [&](auto first) {
    using T = Pointed<decltype(first)>;
    const auto* second = static_cast<const T*>(y.untyped_data());
    auto* result = static_cast<T*>(z->untyped_data());
    Team(pool).Share(x.element_count(), kNumbers / 2,
                     [=](int64_t from, int64_t to, int64_t) {
      Combine(result + from, to - from, function, first + from, second + from);
    });
  });
}

ffi::Error SumOf(Pool pool, AnyBuffer x, AnyBuffer y,
                 ffi::Result<AnyBuffer> z) {
  return EachNumber(pool, x, y, z, Plus);
}

ffi::Error SwigluOf(Pool pool, AnyBuffer x, AnyBuffer y,
                    ffi::Result<AnyBuffer> z) {
  return EachNumber(pool, x, y, z, Swiglu);
}

// x [..., in], scale [in] -> x over the root of its mean square, times scale
ffi::Error NormOf(Pool pool, AnyBuffer x, AnyBuffer scale,
                  ffi::Result<AnyBuffer> y, float epsilon, bool plus_one) {
  const int64_t size = scale.element_count(), rows = x.element_count() / size;
  return OfFloats(x, [&](auto from) {
    using T = Pointed<decltype(from)>;
    const auto* factors = static_cast<const T*>(scale.untyped_data());
    auto* to = static_cast<T*>(y->untyped_data());
    Team(pool).Share(rows, kNumbers / size + 1,
                     [=](int64_t first, int64_t last, int64_t) {
      for (int64_t row = first; row < last; ++row) {
        Norm(from + row * size, factors, to + row * size, size, epsilon,
             plus_one);
      }
    });
  });
}

// q [B, T, H, G, C]; then of each stretch keys [B, H, C, s], values [B, H, s,
// C] and a mask [B, T or 1, s] -> [B, T, H, G, C], and [B, T, H, G] the
// logarithms of the sums of the exponentials of the scores
ffi::Error AttentionOf(Pool pool, F32 q, ffi::RemainingArgs rest,
                       ffi::Result<AnyBuffer> y, ffi::Result<F32> log_sums,
                       float cap) {
  const auto sizes = q.dimensions();
  const int64_t heads = sizes[2];
  const Queries queries{q.typed_data(), log_sums->typed_data(), sizes[1], heads,
                        sizes[3], sizes[4], As<float>(ffi::F32, *y),
                        As<uint16_t>(ffi::BF16, *y)};
  std::vector<AnyBuffer> arrays;
  for (size_t i = 0; i < rest.size(); ++i) {
    arrays.push_back(*rest.get<AnyBuffer>(i));
  }
  return OfFloats(arrays[0], [&](auto first) {
    using T = Pointed<decltype(first)>;
    const int64_t tiles = queries.Tiles();
    EachRow(pool, sizes[0] * heads * tiles, [=](int64_t item) {
      const int64_t index = item / tiles;
      std::vector<Stretch<T>> stretches;
      for (size_t i = 0; i < arrays.size(); i += 3) {
        const auto mask = arrays[i + 2].dimensions();
        const int64_t rows = mask[1], slots = mask[2];
        const auto at = [&](int j) {
          return static_cast<const T*>(arrays[i + j].untyped_data()) +
                 index * slots * queries.channels;
        };
        const auto* seen =
            static_cast<const uint8_t*>(arrays[i + 2].untyped_data());
        stretches.push_back({at(0), at(1),
                             seen + index / heads * rows * slots, slots, rows});
      }
      Head<T>(std::move(stretches), queries, index, cap).Attend(item % tiles);
    });
  });
}

// Keys [..., B, H, C, S] or values [..., B, H, S, C].
Array ArrayOf(AnyBuffer x, bool keys) {
  const auto last = x.dimensions().end();
  const int64_t item = ffi::ByteWidth(x.element_type());
  Array array{static_cast<char*>(x.untyped_data()),
              static_cast<int64_t>(x.element_count()) / (last[-1] * last[-2]),
              last[-3], 1, last[-1] * item, last[-2]};
  if (keys) array.lines = last[-2], array.bytes = item, array.slots = last[-1];
  return array;
}

// slots [B, K], lengths [B], then keys and values of a cache, which are the
// results as well, and those of a block
ffi::Error CommitOf(Pool pool, S32 slots, S32 lengths,
                    ffi::RemainingArgs arrays, ffi::RemainingRets,
                    int64_t keys) {
  const int64_t number = arrays.size() / 2;
  std::vector<Array> targets, sources;
  for (int64_t i = 0; i < number; ++i) {
    const bool first = i < keys;
    targets.push_back(ArrayOf(*arrays.get<AnyBuffer>(i), first));
    sources.push_back(ArrayOf(*arrays.get<AnyBuffer>(number + i), first));
  }
  Commit(pool, std::move(targets), std::move(sources), slots.typed_data(),
         slots.dimensions()[1], lengths.typed_data(), slots.dimensions()[0]);
  return ffi::Error::Success();
}

// x [..., V], divisor [...], of which each is for as many rows of x -> the
// largest of each row, and the logarithm of its mass
ffi::Error NormalizerOf(Pool pool, F32 x, F32 divisor, ffi::Result<F32> largest,
                        ffi::Result<F32> log_mass) {
  const int64_t rows = largest->element_count(), size = x.dimensions().back();
  const int64_t each = rows / divisor.element_count();
  const float *numbers = x.typed_data(), *divisors = divisor.typed_data();
  float *most = largest->typed_data(), *mass = log_mass->typed_data();
  EachRow(pool, rows, [=](int64_t row) {
    Normalizer(numbers + row * size, size, divisors[row / each], most + row,
               mass + row);
  });
  return ffi::Error::Success();
}

// keys [..., 2], log_probs [..., V] -> perturbed [..., k] and tokens [..., k]
ffi::Error DrawsOf(Pool pool, U32 keys, F32 log_probs,
                   ffi::Result<F32> perturbed, ffi::Result<S32> tokens) {
  const int64_t size = log_probs.dimensions().back();
  const int64_t k = tokens->dimensions().back();
  const uint32_t* key = keys.typed_data();
  const float* distribution = log_probs.typed_data();
  float* values = perturbed->typed_data();
  int32_t* places = tokens->typed_data();
  EachRow(pool, keys.element_count() / 2, [=](int64_t row) {
    GumbelTopK(key + 2 * row, distribution + row * size, size, values + row * k,
               places + row * k, k);
  });
  return ffi::Error::Success();
}

// keys [..., 2], numbers [..., n] or nothing -> both halves of the hash of
// each, or of 0, 1, ..., [..., n, 2]
ffi::Error HashesOf(U32 keys, ffi::RemainingArgs numbers,
                    ffi::Result<U32> hashes) {
  const int64_t size = hashes->dimensions().end()[-2];
  const int64_t rows = keys.element_count() / 2;
  const auto* from = numbers.size() ?
      numbers.get<U32>(0)->typed_data() : nullptr;
  auto* to = reinterpret_cast<uint32_t(*)[2]>(hashes->typed_data());
  for (int64_t row = 0; row < rows; ++row) {
    Hashes(keys.typed_data() + 2 * row, from ? from + row * size : nullptr,
           to + row * size, size);
  }
  return ffi::Error::Success();
}

// anything -> arrays, zeros if they are to be
ffi::Error RoomOf(AnyBuffer, ffi::RemainingRets results, bool zeros) {
  for (size_t i = 0; zeros && i < results.size(); ++i) {
    auto array = *results.get<AnyBuffer>(i);
    std::memset(array->untyped_data(), 0, array->size_bytes());
  }
  return ffi::Error::Success();
}

// Where, then targets [B, M, ...], which are the results as well, and as many
// sources [B, W, ...]
ffi::Error PutOf(Pool pool, S32 start, ffi::RemainingArgs arrays,
                 ffi::RemainingRets) {
  const size_t number = arrays.size() / 2;
  Team team(pool);
  for (size_t i = 0; i < number; ++i) {
    const auto target = *arrays.get<AnyBuffer>(i);
    const auto source = *arrays.get<AnyBuffer>(number + i);
    const auto most = target.dimensions(), given = source.dimensions();
    const int64_t row = target.size_bytes() / most[0];
    const int64_t size = source.size_bytes() / given[0];
    const int64_t first = std::clamp<int64_t>(*start.typed_data(), 0,
                                              most[1] - given[1]);
    char* to =
        static_cast<char*>(target.untyped_data()) + row / most[1] * first;
    const char* from = static_cast<char*>(source.untyped_data());
    for (int64_t b = 0; b < most[0]; ++b, to += row, from += size) {
      team.Share(size, 1 << 16, [=](int64_t begin, int64_t end, int64_t) {
        std::memcpy(to + begin, from + begin, end - begin);
      });
    }
  }
  return ffi::Error::Success();
}

#define HANDLER(name, function, ...) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, ffi::Ffi::Bind() __VA_ARGS__)

HANDLER(products, ProductsOf,
        .Ctx<Pool>().Arg<AnyBuffer>().RemainingArgs().RemainingRets());
HANDLER(sum, SumOf, .Ctx<Pool>().Arg<AnyBuffer>().Arg<AnyBuffer>()
        .Ret<AnyBuffer>());
HANDLER(swiglu, SwigluOf, .Ctx<Pool>().Arg<AnyBuffer>().Arg<AnyBuffer>()
        .Ret<AnyBuffer>());
HANDLER(norm, NormOf, .Ctx<Pool>().Arg<AnyBuffer>().Arg<AnyBuffer>()
        .Ret<AnyBuffer>().Attr<float>("epsilon").Attr<bool>("plus_one"));
HANDLER(attention, AttentionOf, .Ctx<Pool>().Arg<F32>().RemainingArgs()
        .Ret<AnyBuffer>().Ret<F32>().Attr<float>("cap"));
HANDLER(commit, CommitOf, .Ctx<Pool>().Arg<S32>().Arg<S32>().RemainingArgs()
        .RemainingRets().Attr<int64_t>("keys"));
HANDLER(normalizer, NormalizerOf,
        .Ctx<Pool>().Arg<F32>().Arg<F32>().Ret<F32>().Ret<F32>());
HANDLER(draws, DrawsOf,
        .Ctx<Pool>().Arg<U32>().Arg<F32>().Ret<F32>().Ret<S32>());
HANDLER(hashes, HashesOf, .Arg<U32>().RemainingArgs().Ret<U32>());
HANDLER(room, RoomOf, .Arg<AnyBuffer>().RemainingRets().Attr<bool>("zeros"));
HANDLER(put, PutOf, .Ctx<Pool>().Arg<S32>().RemainingArgs().RemainingRets());
