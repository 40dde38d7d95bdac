// Vectors of numbers, as wide as this CPU's registers.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kRegisters = 32;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <class T>
struct Lanes {
  using type [[gnu::vector_size(sizeof(T) * kLanes)]] = T;
};
template <class T>
using Full = typename Lanes<T>::type;
using Vector = Full<float>;

template <class To, class From>
To Bits(const From* from) {
  To bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

#if defined(__AVX512F__)
// Without a mask of all lanes, these instructions come with a register that is
// not initialised, of which GCC warns.
constexpr __mmask16 kAll = 0xffff;
#endif

// What compilers make of conversions between vectors takes several times as
// long as the instructions that there are.
inline Full<int32_t> Widen(const int8_t* from) {
#if defined(__AVX512F__)
  return Full<int32_t>(
      _mm512_maskz_cvtepi8_epi32(kAll, Bits<__m128i>(from)));
#elif defined(__AVX2__)
  return Full<int32_t>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(
      Bits<int64_t>(from))));
#else
  return __builtin_convertvector(Bits<Full<int8_t>>(from), Full<int32_t>);
#endif
}

inline Full<int32_t> Widen(const uint8_t* from) {
#if defined(__AVX512F__)
  return Full<int32_t>(
      _mm512_maskz_cvtepu8_epi32(kAll, Bits<__m128i>(from)));
#elif defined(__AVX2__)
  return Full<int32_t>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(
      Bits<int64_t>(from))));
#else
  return __builtin_convertvector(Bits<Full<uint8_t>>(from), Full<int32_t>);
#endif
}

inline Full<int32_t> Widen(const uint16_t* from) {
#if defined(__AVX512F__)
  return Full<int32_t>(
      _mm512_maskz_cvtepu16_epi32(kAll, Bits<__m256i>(from)));
#elif defined(__AVX2__)
  return Full<int32_t>(_mm256_cvtepu16_epi32(Bits<__m128i>(from)));
#else
  return __builtin_convertvector(Bits<Full<uint16_t>>(from), Full<int32_t>);
#endif
}

inline Vector Load(const float* from) { return Bits<Vector>(from); }

inline Vector Load(const int8_t* from) {
  return __builtin_convertvector(Widen(from), Vector);
}

// bfloat16, which is the upper half of a float32.
inline Vector Load(const uint16_t* from) { return Vector(Widen(from) << 16); }

// sums + x y, rounded once. Left to compilers, those for AMD would round twice
// in loops that have one sum: its bits would depend on what is beside it.
inline Vector Fused(Vector sums, Vector x, Vector y) {
#if defined(__AVX512F__)
  return Vector(_mm512_fmadd_ps(__m512(x), __m512(y), __m512(sums)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Vector(_mm256_fmadd_ps(__m256(x), __m256(y), __m256(sums)));
#else
  return sums + x * y;
#endif
}

// A vector in a register. A compiler would rather load it for each of its
// products, and cores load no more vectors than they multiply.
template <class V>
V Kept(V x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__SSE2__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// The first numbers, at most kLanes, and zeros.
template <class T>
Vector LoadFirst(const T* from, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  // Copies of a number of bytes that is not known are slow.
  const auto first = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (sizeof(T) == 4) {
    return Vector(_mm512_maskz_loadu_ps(first, from));
  } else if constexpr (sizeof(T) == 2) {
    const __m256i lanes = _mm256_maskz_loadu_epi16(first, from);
    return Load(reinterpret_cast<const T*>(&lanes));
  }
#endif
  T lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(T));
  return Load(lanes);
}

inline void Store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }

inline void Store(uint16_t* to, Vector x) {
  const auto upper = __builtin_convertvector(Full<uint32_t>(x) >> 16,
                                             Full<uint16_t>);
  std::memcpy(to, &upper, sizeof upper);
}

template <class T>
void StoreFirst(T* to, Vector x, int64_t count) {
  T lanes[kLanes];
  Store(lanes, x);
  std::memcpy(to, lanes, count * sizeof(T));
}

// Numbers of another type, which has them.
template <class From, class To>
void Copy(const From* from, int64_t size, To* to) {
  const int64_t whole = size / kLanes * kLanes, left = size - whole;
  for (int64_t i = 0; i < whole; i += kLanes) Store(to + i, Load(from + i));
  if (left) StoreFirst(to + whole, LoadFirst(from + whole, left), left);
}

// Of those of two vectors in a row, where `from` says.
template <class From, size_t... lane>
Vector Shuffled(Vector x, Vector y, From, std::index_sequence<lane...>) {
#ifdef __clang__
  return __builtin_shufflevector(x, y, From()(lane)...);
#else
  return __builtin_shuffle(x, y, Full<int32_t>{From()(lane)...});
#endif
}

// Groups of `size` lanes of two vectors, each half as large: its upper half is
// added to the lower one.
template <int size>
Vector Halved(Vector x, Vector y) {
  struct Lower {
    constexpr int operator()(int lane) const {
      return lane / (size / 2) * size + lane % (size / 2);
    }
  };
  struct Upper {
    constexpr int operator()(int lane) const {
      return Lower()(lane) + size / 2;
    }
  };
  constexpr auto all = std::make_index_sequence<kLanes>();
  return Shuffled(x, y, Lower(), all) + Shuffled(x, y, Upper(), all);
}

// Sums of all lanes, which are added in this order whatever is beside them.
template <int rows>
void Sums(const Vector (&x)[rows], float* sums) {
  static_assert(rows == 1 || rows == 2 || rows == 4);
  constexpr int size = kLanes / rows;
  Vector all = x[0];
  if constexpr (rows > 1) all = Halved<kLanes>(x[0], x[1]);
  if constexpr (rows > 2) {
    all = Halved<kLanes / 2>(all, Halved<kLanes>(x[2], x[3]));
  }
  if constexpr (size >= 16) all = Halved<16>(all, all);
  if constexpr (size >= 8) all = Halved<8>(all, all);
  if constexpr (size >= 4) all = Halved<4>(all, all);
  if constexpr (size >= 2) all = Halved<2>(all, all);
  std::memcpy(sums, &all, rows * sizeof *sums);
}

// The largest of some numbers.
inline float Largest(const float* x, int64_t count) {
  Vector mosts = Vector{} + kNothing;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector lanes = Load(x + i);
    mosts = lanes > mosts ? lanes : mosts;
  }
  float most = kNothing;
  for (int lane = 0; lane < kLanes; ++lane) most = std::max(most, mosts[lane]);
  for (; i < count; ++i) most = std::max(most, x[i]);
  return most;
}

// e^x for x <= 0, to 1e-7 of its size, and 0 below -87: of the nearest power of
// two and the series of what is left.
inline Vector Exp(Vector x) {
  const auto power = __builtin_convertvector(x * 1.44269504f - 0.5f,
                                             Full<int32_t>);
  const Vector whole = __builtin_convertvector(power, Vector);
  // ln 2 in two parts, of which the first has few digits.
  const Vector left = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vector series = left * (1 / 5040.f) + 1 / 720.f;
#pragma GCC unroll 8
  for (float factor : {1 / 120.f, 1 / 24.f, 1 / 6.f, 1 / 2.f, 1.f, 1.f}) {
    series = series * left + factor;
  }
  return x < -87.f ? Vector{} : Vector(Full<int32_t>(series) + (power << 23));
}

// The logarithm of positive numbers that are not smaller than 2^-126, to 1e-7
// of its size: that of a power of two, and 2 artanh of what is left.
inline Vector Log(Vector x) {
  const auto bits = Full<int32_t>(x);
  // What is left is between the roots of 1/2 and of 2.
  const auto power = (bits - 0x3f3504f3) >> 23;
  const Vector whole = __builtin_convertvector(power, Vector);
  const Vector left = Vector(bits - (power << 23));
  const Vector ratio = (left - 1) / (left + 1), square = ratio * ratio;
  Vector series = square * (2 / 9.f) + 2 / 7.f;
#pragma GCC unroll 8
  for (float factor : {2 / 5.f, 2 / 3.f, 2.f}) {
    series = series * square + factor;
  }
  return series * ratio + whole * -2.12194440e-4f + whole * 0.693359375f;
}

// Whether any lane of a comparison is true.
inline bool Any(Full<int32_t> hits) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(__m512i(hits), __m512i(hits));
#elif defined(__AVX2__)
  return _mm256_movemask_ps(__m256(hits));
#else
  for (int i = 0; i < kLanes; ++i) {
    if (hits[i]) return true;
  }
  return false;
#endif
}
