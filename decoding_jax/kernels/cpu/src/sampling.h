// Distributions of the next token: what normalises one, and draws from it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "simd.h"

// The largest number, and log sum exp((x - largest) / divisor).
inline void Normalizer(const float* x, int64_t size, float divisor,
                       float* largest, float* log_mass) {
  const int64_t whole = size / kLanes * kLanes;
  const float most = Largest(x, size), factor = 1 / divisor;
  Vector total[1] = {};
  float sum[1];
  // Sums of sums: what is added to a large one loses digits.
  for (int64_t i = 0; i < whole;) {
    const int64_t end = std::min(whole, i + 64 * kLanes);
    Vector part = {};
    for (; i < end; i += kLanes) {
      part += Exp((Load(x + i) - most) * factor);
    }
    total[0] += part;
  }
  Sums(total, sum);
  for (int64_t i = whole; i < size; ++i) {
    sum[0] += std::exp((x[i] - most) * factor);
  }
  *largest = most;
  *log_mass = std::log(sum[0]);
}

// Threefry-2x32 with 20 rounds, see `random.threefry`.
inline void Threefry(const uint32_t* key, Full<uint32_t>* first,
                     Full<uint32_t>* second) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  Full<uint32_t> x = *first + keys[0], y = *second + keys[1];
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int distance = kRotations[i % 2][j];
      x += y;
      y = (y << distance) | (y >> (32 - distance));
      y ^= x;
    }
    x += keys[(i + 1) % 3];
    y += keys[(i + 2) % 3] + i + 1;
  }
  *first = x;
  *second = y;
}

// Both halves of the hash of each number, or of 0, 1, ...
inline void Hashes(const uint32_t* key, const uint32_t* numbers,
                   uint32_t (*hashes)[2], int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Full<uint32_t> words[2] = {};
    const int64_t count = std::min<int64_t>(kLanes, size - i);
    for (int64_t lane = 0; lane < count; ++lane) {
      words[1][lane] = numbers ? numbers[i + lane] : i + lane;
    }
    Threefry(key, &words[0], &words[1]);
    for (int64_t lane = 0; lane < count; ++lane) {
      hashes[i + lane][0] = words[0][lane];
      hashes[i + lane][1] = words[1][lane];
    }
  }
}

// Above 0 and below 1, of random words; see `random.exponential`.
inline Vector Uniform(Full<uint32_t> words) {
  const Vector uniform =
      (__builtin_convertvector(words, Vector) + 0.5f) * 0x1p-32f;
  constexpr float kMost = 1 - 0x1p-24f;
  return uniform > kMost ? Vector{} + kMost : uniform;
}

// What Gumbels of these are not larger than, at hardly any price: -log u is
// more than they are, and less than that of the power of two that is not above
// u.
inline Vector AtMost(Vector uniform) {
  const auto power = 127 - (Full<int32_t>(uniform) >> 23);
  return __builtin_convertvector(power, Vector) * 0.6931472f + 1e-3f;
}

// Gumbels of uniform numbers, see `random.gumbel`.
inline Vector Gumbels(Vector uniform) {
  // log(1 - u), all digits of small ones being kept.
  const Vector rest = 1 - uniform, lost = 1 - rest;
  const Vector exponential = lost > 0 ? -Log(rest) * (uniform / lost) : uniform;
  return -Log(exponential);
}

// The largest numbers so far, in order, and where they are; of equal ones the
// first.
class Best {
 public:
  Best(float* values, int32_t* places, int64_t size)
      : values_(values), places_(places), size_(size) {
    for (int64_t i = 0; i < size; ++i) values[i] = kNothing, places[i] = -1 - i;
  }

  // Whether any of these may be among them.
  bool Wants(Vector x) const { return Any(x >= values_[size_ - 1]); }

  // Numbers of `count` places in a row.
  void Look(Vector x, int64_t place, int64_t count) {
    if (!Wants(x)) return;
    for (int64_t i = 0; i < count; ++i) Insert(x[i], place + i);
  }

 private:
  void Insert(float value, int32_t place) {
    int64_t at = size_;
    while (at > 0 && (value > values_[at - 1] ||
                      (value == values_[at - 1] && Before(place, at - 1)))) {
      --at;
    }
    if (at == size_) return;
    std::copy_backward(values_ + at, values_ + size_ - 1, values_ + size_);
    std::copy_backward(places_ + at, places_ + size_ - 1, places_ + size_);
    values_[at] = value;
    places_[at] = place;
  }

  // Any place comes before one that is still free.
  bool Before(int32_t place, int64_t other) const {
    return places_[other] < 0 || place < places_[other];
  }

  float* const values_;
  int32_t* const places_;
  const int64_t size_;
};

// The k largest sums of log-probabilities and Gumbels.
inline void GumbelTopK(const uint32_t* key, const float* log_probs,
                       int64_t size, float* values, int32_t* places,
                       int64_t k) {
  const int64_t half = (size + 1) / 2;
  Best best(values, places, k);
  Full<uint32_t> lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  for (int64_t i = 0; i < half; i += kLanes) {
    Full<uint32_t> words[2] = {lanes + static_cast<uint32_t>(i), {}};
    Threefry(key, &words[0], &words[1]);
    const int64_t ends[2] = {half, size};
    for (int part = 0; part < 2; ++part) {
      const int64_t from = part * half + i;
      const int64_t count = std::min<int64_t>(kLanes, ends[part] - from);
      if (count <= 0) continue;
      const Vector distribution = count == kLanes ? Load(log_probs + from)
                                         : LoadFirst(log_probs + from, count);
      const Vector uniform = Uniform(words[part]);
      if (!best.Wants(distribution + AtMost(uniform))) continue;
      best.Look(distribution + Gumbels(uniform), from, count);
    }
  }
  // Of what is no number none is the largest.
  for (int64_t i = 0; i < k; ++i) places[i] = std::max(places[i], 0);
}
