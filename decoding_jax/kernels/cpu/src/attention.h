// Attention of a few queries, in one softmax over several stretches of keys.
//
// Slots that no query may see are not read: a cache costs what it holds, not
// what it has room for.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "factor.h"
#include "norm.h"
#include "simd.h"

// Queries of a tile, at most, and vectors of slots or channels: all sums stay
// in registers.
constexpr int kQueries = 6, kVectors = kRegisters == 32 ? 4 : 2;
constexpr int64_t kWide = kVectors * kLanes;

// Keys [C, slots], values [slots, C] of one head and row, and what may be seen,
// [T or 1, slots].
template <class T>
struct Stretch {
  const T* keys;
  const T* values;
  const uint8_t* mask;
  int64_t slots, mask_rows;
};

// Consecutive slots, at most kWide, that some query sees.
struct Block {
  int64_t stretch, first, count;
};

// The numbers there are, and zeros.
template <bool whole, class T>
Vector LoadUpTo(const T* from, int64_t count) {
  return whole ? Load(from) : LoadFirst(from, std::clamp<int64_t>(
      count, 0, kLanes));
}

// sums[r] of so many vectors += sum_i a[r, i] b[i, :], of `count` lanes. As
// much is fetched from `next` on meanwhile.
template <int rows, int vectors, bool whole, class T>
void Multiply(const float* a, int64_t a_step, const T* b, int64_t b_step,
              int64_t size, int64_t count, const T* next, int64_t next_step,
              Vector (&sums)[rows][kVectors]) {
  // Not in place: in an array of the caller's they would go through memory.
  Vector more[rows][vectors] = {};
  for (int64_t i = 0; i < size; ++i) {
    Vector lanes[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      lanes[v] = LoadUpTo<whole>(b + i * b_step + v * kLanes,
                                 count - v * kLanes);
    }
#pragma GCC unroll 8
    for (int64_t at = 0; at < vectors * kLanes; at += 64 / sizeof(T)) {
      __builtin_prefetch(next + i * next_step + at, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector same = a[r * a_step + i] - Vector{};  // In all lanes.
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        more[r][v] = Fused(more[r][v], same, lanes[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[r][v] += more[r][v];
  }
}

// `Multiply` of as many vectors as `count` lanes need.
template <int rows, int most, class T, class... Rest>
void MultiplyOf(int64_t count, const float* a, int64_t a_step, const T* b,
                int64_t b_step, int64_t size, Rest&&... rest) {
  if constexpr (most > 1) {
    if (count <= most / 2 * kLanes) {
      return MultiplyOf<rows, most / 2>(count, a, a_step, b, b_step, size,
                                        rest...);
    }
  }
  (count == most * kLanes ? Multiply<rows, most, true, T>
                          : Multiply<rows, most, false, T>)(
      a, a_step, b, b_step, size, count, rest...);
}

// Queries [B, T, H, G, C], and what comes of them.
struct Queries {
  const float* q;
  float* log_sums;
  int64_t length, heads, groups, channels;
  float* y;
  uint16_t* rounded;  // Of 16 bits, in place of `y`; or null

  // Those of a head of a row are [T, G].
  int64_t Count() const { return length * groups; }
  int64_t Tiles() const { return (Count() + kQueries - 1) / kQueries; }
  // The number of one, of all.
  int64_t Of(int64_t head, int64_t query) const {
    const int64_t token = head / heads * length + query / groups;
    return (token * heads + head % heads) * groups + query % groups;
  }
};

// One head of one row.
template <class T>
class Head {
 public:
  Head(std::vector<Stretch<T>> stretches, const Queries& queries, int64_t head,
       float cap)
      : stretches_(std::move(stretches)), queries_(queries), head_(head),
        channels_(queries.channels), cap_(cap) {}

  [[gnu::noinline]] void Attend(int64_t tile) {
    const int64_t first = tile * kQueries;
    TileOf<kQueries>(queries_.Count() - first, first);
  }

 private:
  // What some of so many queries, from one on, see.
  void Look(int64_t query, int rows) {
    blocks_.clear();
    for (size_t i = 0; i < stretches_.size(); ++i) {
      const Stretch<T>& x = stretches_[i];
      for (int64_t s = 0; s < x.slots; s += kWide) {
        const int64_t count = std::min(kWide, x.slots - s);
        bool seen = false;
        for (int r = 0; r < (x.mask_rows > 1 ? rows : 1) && !seen; ++r) {
          const uint8_t* mask = Seen(x, query + r) + s;
          seen = std::find(mask, mask + count, 1) != mask + count;
        }
        if (seen) blocks_.push_back({static_cast<int64_t>(i), s, count});
      }
    }
    width_ = blocks_.size() * kWide;
    scores_.resize(rows * blocks_.size() * kVectors);
  }

  const uint8_t* Seen(const Stretch<T>& x, int64_t query) const {
    return x.mask + (x.mask_rows > 1 ? query / queries_.groups * x.slots : 0);
  }

  bool IsShort(const Stretch<T>& x) const {
    return x.slots * channels_ * sizeof(T) <= 1 << 18;
  }

  // Those of a query of a tile.
  float* Scores(int row) {
    return reinterpret_cast<float*>(scores_.data()) + row * width_;
  }

  // `Tile` of as many queries as are left, up to `most`.
  template <int most>
  void TileOf(int64_t left, int64_t query) {
    if constexpr (most > 1) {
      if (left < most) return TileOf<most - 1>(left, query);
    }
    Tile<most>(query);
  }

  template <int rows>
  void Tile(int64_t query) {
    Look(query, rows);
    int64_t number[rows];
    float* q = Near<kInputs, float>(rows * channels_);
    for (int r = 0; r < rows; ++r) {
      number[r] = queries_.Of(head_, query + r);
      std::copy_n(queries_.q + number[r] * channels_, channels_,
                  q + r * channels_);
    }
    Score<rows>(q, query);
    float totals[rows];
    for (int r = 0; r < rows; ++r) {
      totals[r] = Softmax(Scores(r), queries_.log_sums + number[r]);
    }
    for (int64_t c = 0; c < channels_; c += kWide) {
      Vector sums[rows][kVectors] = {};
      const int64_t count = std::min(kWide, channels_ - c);
      for (size_t i = 0; i < blocks_.size(); ++i) {
        const Block& at = blocks_[i];
        const T* values =
            stretches_[at.stretch].values + at.first * channels_ + c;
        // Keys of the head that comes next.
        const Stretch<T>& x = stretches_[at.stretch];
        const T* next = IsShort(x) ? x.keys + channels_ * x.slots + at.first
                                   : values;
        MultiplyOf<rows, kVectors>(
            count, Scores(0) + i * kWide, width_, values, channels_,
            at.count, next, IsShort(x) ? x.slots : channels_, sums);
      }
      for (int r = 0; r < rows; ++r) {
        for (Vector& sum : sums[r]) sum /= totals[r];
        const int64_t at = number[r] * channels_ + c;
        const auto* from = reinterpret_cast<const float*>(sums[r]);
        if (queries_.rounded) {
          Combine(queries_.rounded + at, count, Same, from);
        } else {
          std::copy_n(from, count, queries_.y + at);
        }
      }
    }
  }

  template <int rows>
  void Score(const float* q, int64_t query) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& at = blocks_[i];
      const Stretch<T>& x = stretches_[at.stretch];
      Vector sums[rows][kVectors] = {};
      const T* keys = x.keys + at.first;
      const T* next = IsShort(x) ? x.values + at.first * channels_ : keys;
      MultiplyOf<rows, kVectors>(at.count, q, channels_, keys, x.slots,
                                 channels_, next,
                                 IsShort(x) ? channels_ : x.slots, sums);
      for (int r = 0; r < rows; ++r) {
        Mask(Seen(x, query + r) + at.first, at.count, sums[r]);
        std::memcpy(Scores(r) + i * kWide, sums[r], sizeof sums[r]);
      }
    }
  }

  // -inf for what a query does not see.
  void Mask(const uint8_t* seen, int64_t count, Vector (&scores)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      for (int i = 0; cap_ != 0 && i < kLanes; ++i) {
        scores[v][i] = cap_ * std::tanh(scores[v][i] / cap_);
      }
      const int64_t left = count - v * kLanes;
      const auto* bytes = reinterpret_cast<const int8_t*>(seen + v * kLanes);
      const Vector shown = left >= kLanes ? Load(bytes)
                           : left > 0     ? LoadFirst(bytes, left)
                                          : Vector{};
      scores[v] = shown > 0 ? scores[v]
                            : Vector{} + kNothing;
    }
  }

  // Scores become weights, whose sum is returned.
  float Softmax(float* scores, float* log_sum) {
    const float most = Largest(scores, width_);
    Vector total[1] = {};
    for (int64_t i = 0; i < width_; i += kLanes) {
      const Vector weights = Exp(Load(scores + i) - most);
      std::memcpy(scores + i, &weights, sizeof weights);
      total[0] += weights;
    }
    float sum[1];
    Sums(total, sum);
    *log_sum = most + std::log(sum[0]);
    return sum[0];
  }

  const std::vector<Stretch<T>> stretches_;
  const Queries queries_;
  const int64_t head_, channels_;
  const float cap_;
  // Of the tile that is computed.
  std::vector<Block> blocks_;
  std::vector<Vector> scores_;
  int64_t width_ = 0;
};
