// Products of bfloat16 by the matrix unit of a CPU (AMX), where there is one.
//
// A tile has 16 rows of 64 bytes. One of weights is loaded from where they lie:
// 16 rows of 32 numbers. One of columns has the same 32 numbers of 16 columns,
// in pairs, and is packed once a call. A tile of sums takes their products: up
// to 32 columns cost about what one does, which is to read the weights. Each
// sum is added up in the order of the inputs, whatever is beside it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dot_terms.h"
#include "factor.h"
#include "simd.h"

// Rows or columns of a tile, and numbers of each.
constexpr int64_t kTile = 16, kDepth = 32;
// Rows of weights, and columns, that are multiplied at a time.
constexpr int64_t kPanel = 2 * kTile;

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

constexpr bool kMatrixUnit = true;

// Whether the system lets this process use the unit: it has to be asked.
inline bool HasMatrixUnit() {
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool granted = !syscall(SYS_arch_prctl, kRequest, kTileData);
  return granted;
}

// Compilers do not know what instructions of tiles read: it is to be in memory.
inline void Written() { asm volatile("" ::: "memory"); }

// The unit, with all its tiles whole; others find it as it was.
class MatrixUnit {
 public:
  MatrixUnit() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shape;
    std::fill_n(shape.bytes, 8, 2 * kDepth);
    std::fill_n(shape.rows, 8, kTile);
    Written();
    _tile_loadconfig(&shape);
  }
  ~MatrixUnit() { _tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
};

// Numbers of 16 bits, a distance in bytes from row to row.
struct Lines {
  const uint16_t* first;
  int64_t stride;
};

// Sums of up to two tiles of weights times up to two of columns, [weights,
// columns, row, column]. `weights` gives the lines of a number of a step.
template <int panels, int blocks, class Weights>
void SumTiles(Weights& weights, const uint16_t* columns, int64_t steps,
              float (*sums)[kTile][kTile]) {
  constexpr int64_t tile = kTile * kDepth;
  // The numbers of tiles are part of the instructions.
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k) {
    const Lines lines = weights(k);
    _tile_loadd(4, lines.first, lines.stride);
    _tile_loadd(6, columns + k * tile, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (panels > 1) {
      _tile_loadd(5, lines.first + kTile * lines.stride / 2, lines.stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (blocks > 1) {
      _tile_loadd(7, columns + (steps + k) * tile, 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (panels > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0], 64);
  if constexpr (blocks > 1) _tile_stored(1, sums[1], 64);
  if constexpr (panels > 1) _tile_stored(2, sums[2], 64);
  if constexpr (panels > 1 && blocks > 1) _tile_stored(3, sums[3], 64);
}

// Exchanges lanes with vectors, as a matrix with its transpose.
template <int step = kTile / 2>
void Transpose(Vector (&x)[kTile]) {
  struct Lower {
    constexpr int operator()(int lane) const {
      return lane & step ? kLanes + (lane ^ step) : lane;
    }
  };
  struct Upper {
    constexpr int operator()(int lane) const {
      return lane & step ? kLanes + lane : lane ^ step;
    }
  };
  constexpr auto all = std::make_index_sequence<kLanes>();
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) {
    if (i & step) continue;
    const Vector lower = x[i], upper = x[i | step];
    x[i] = Shuffled(lower, upper, Lower(), all);
    x[i | step] = Shuffled(lower, upper, Upper(), all);
  }
  if constexpr (step > 1) Transpose<step / 2>(x);
}

// A block of 16 columns [16, inputs] as tiles, zeros after the last column.
inline void Pack(const uint16_t* x, int64_t inputs, int64_t columns,
                 uint16_t* tiles) {
  for (int64_t k = 0; k < inputs; k += kDepth) {
    Vector lines[kTile] = {};
    for (int t = 0; t < std::min(columns, kTile); ++t) {
      const uint16_t* from = x + t * inputs + k;
      const auto line = inputs - k < kDepth ?
          Terms<uint16_t>::First(from, inputs - k) :
          Terms<uint16_t>::Of(from);
      lines[t] = Bits<Vector>(&line);
    }
    Transpose(lines);
    std::memcpy(tiles + k * kTile, lines, sizeof lines);
  }
}

// Steps that `inputs` numbers take, the last one with zeros.
inline int64_t Steps(int64_t inputs) { return (inputs + kDepth - 1) / kDepth; }

// All columns as tiles, packed by a team.
template <class Team>
const uint16_t* Packed(Team& team, const uint16_t* x, int64_t inputs,
                       int64_t columns) {
  const int64_t blocks = (columns + kTile - 1) / kTile;
  const int64_t size = Steps(inputs) * kDepth * kTile;
  auto* tiles = Near<kInputs, uint16_t>(blocks * size);
  team.Share(blocks, 1, [=](int64_t from, int64_t to, int64_t) {
    for (; from < to; ++from) {
      Pack(x + from * kTile * inputs, inputs, columns - from * kTile,
           tiles + from * size);
    }
    Written();
  });
  return tiles;
}

// Rows of weights as lines of bfloat16: where they are, or converted one step at
// a time, in the first cache. Where they are multiplied with more columns than
// there are tiles for, all steps are converted once.
template <class T>
class Panel {
 public:
  Panel(const T* w, const T* next, int64_t rows, int64_t inputs,
        bool is_read_again)
      : w_(w), next_(next), rows_(rows), inputs_(inputs),
        is_in_place_(std::is_same_v<T, uint16_t> && rows % kTile == 0 &&
                     inputs % kDepth == 0),
        is_kept_(is_read_again && !is_in_place_),
        stride_(is_in_place_ ? inputs : is_kept_ ? Steps(inputs) * kDepth
                                                 : kDepth),
        near_(is_in_place_ ? nullptr :
              Near<kWeights, uint16_t>(kPanel * stride_)) {}

  Lines operator()(int64_t step) {
    if (is_in_place_) {
      Fetch(step);
      const auto* rows = reinterpret_cast<const uint16_t*>(w_);
      return {rows + step * kDepth, 2 * stride_};
    }
    uint16_t* lines = near_ + (is_kept_ ? step * kDepth : 0);
    if (step >= ready_ || !is_kept_) {
      Fetch(step);
      Convert(step, lines);
      ready_ = step + 1;
    }
    return {lines, 2 * stride_};
  }

 private:
  // Asks for a part of the rows that come next, in the order in which they lie:
  // no core guesses early enough what will be read.
  void Fetch(int64_t step) {
    const auto* next = reinterpret_cast<const char*>(next_);
    const int64_t size = rows_ * kDepth * sizeof(T);
    for (int64_t at = step * size; at < (step + 1) * size; at += 64) {
      __builtin_prefetch(next + at, 0, 2);
    }
  }

  void Convert(int64_t step, uint16_t* lines) {
    const T* from = w_ + step * kDepth;
    const int64_t size = inputs_ - step * kDepth;
    const auto convert = [&](auto line) {
#pragma GCC unroll 4
      for (int64_t r = 0; r < rows_; ++r) {
        const auto numbers = line(from + r * inputs_);
        std::memcpy(lines + r * stride_, &numbers, sizeof numbers);
      }
    };
    using Numbers = Terms<uint16_t>;
    if (size >= kDepth) {
      convert([](const T* x) { return Numbers::Of(x); });
    } else {
      convert([=](const T* x) { return Numbers::First(x, size); });
    }
    Written();
  }

  const T *const w_, *const next_;
  const int64_t rows_, inputs_;
  const bool is_in_place_, is_kept_;
  const int64_t stride_;
  uint16_t* const near_;
  int64_t ready_ = 0;
};

// A tile of sums goes to its results.
inline void Unpack(const float (&sums)[kTile][kTile], int64_t rows,
                   int64_t columns, Result y) {
  Vector lines[kTile];
  std::memcpy(lines, sums, sizeof lines);
  Transpose(lines);
  for (int t = 0; t < std::min(columns, kTile); ++t) {
    if (rows >= kTile) {
      Store(&y(0, t), lines[t]);
    } else {
      StoreFirst(&y(0, t), lines[t], rows);
    }
  }
}

// y(o, t) = sum_i w[o, i] x[t, i] of some rows of a matrix, of packed columns.
// Those at `next` are multiplied after them.
template <class T>
void MultiplyTiles(const Factor<T>& factor, const uint16_t* tiles, int64_t from,
                   int64_t to, int64_t inputs, int64_t columns, const T* next) {
  const MatrixUnit unit;
  const int64_t steps = Steps(inputs);
  alignas(64) float sums[4][kTile][kTile];
  for (; from < to; from += kPanel) {
    const int64_t rows = std::min(kPanel, to - from);
    const T* w = factor.w + from * inputs;
    Panel<T> panel(w, from + rows < to ? w + rows * inputs : next, rows, inputs,
                   columns > kPanel);
    for (int64_t t = 0; t < columns; t += kPanel) {
      const bool is_tall = rows > kTile, is_wide = columns - t > kTile;
      const auto sum = is_tall ?
          is_wide ? SumTiles<2, 2, Panel<T>> : SumTiles<2, 1, Panel<T>> :
          is_wide ? SumTiles<1, 2, Panel<T>> : SumTiles<1, 1, Panel<T>>;
      sum(panel, tiles + t * steps * kDepth, steps, sums);
      for (int i = 0; i < 4; ++i) {
        const int64_t row = i / 2 * kTile, column = i % 2 * kTile;
        if (row < rows && t + column < columns) {
          Unpack(sums[i], rows - row, columns - t - column,
                 factor.y.From(from + row, t + column));
        }
      }
    }
  }
}
#else
constexpr bool kMatrixUnit = false;
inline bool HasMatrixUnit() { return false; }
#endif
