// Products by the matrix unit of a CPU (AMX), where there is one.
//
// A tile has 16 rows of 64 bytes. One of weights is loaded from where they lie:
// 16 rows of 32 numbers of bfloat16, or of 64 whole numbers of 8 bits. One of
// columns has the same numbers of 16 columns, in pairs or fours, and is packed
// once a call. A tile of sums takes their products: 16 columns cost about what
// one does, which is to read the weights. Each sum is added up in the order of
// the inputs, whatever is beside it.
//
// Weights of 8 bits are multiplied as whole numbers: to convert them takes
// longer than to read them. A number of a column becomes three digits of 7
// bits, in units of a power of two: exact from 2^-12 of its largest on.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "factor.h"
#include "simd.h"

// Rows or columns of a tile, and bytes of each; digits of a number.
constexpr int64_t kTile = 16, kLine = 64, kDigits = 3;
// Numbers of each.
template <class T>
constexpr int64_t kDepth = kLine / sizeof(T);
// Rows of weights, and columns, that are multiplied at a time.
constexpr int64_t kPanel = 2 * kTile;

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && \
    defined(__AVX512F__) && defined(__linux__)
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
    std::fill_n(shape.bytes, 8, kLine);
    std::fill_n(shape.rows, 8, kTile);
    Written();
    _tile_loadconfig(&shape);
  }
  ~MatrixUnit() { _tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
};

// Lines of a tile, a distance in bytes from one to the next.
struct Lines {
  const void* first;
  int64_t stride;
};

// Sums of up to two tiles of weights times up to two of columns, [weights,
// columns, row, column]. `weights` gives the lines of a number of a step.
template <int panels, int blocks, class Weights>
void SumTiles(Weights& weights, const uint16_t* columns, int64_t steps,
              float (*sums)[kTile][kTile]) {
  constexpr int64_t tile = kTile * kDepth<uint16_t>;
  // The numbers of tiles are part of the instructions.
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k) {
    const Lines lines = weights(k, 0);
    _tile_loadd(4, lines.first, lines.stride);
    _tile_loadd(6, columns + k * tile, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (panels > 1) {
      _tile_loadd(5, weights(k, kTile).first, lines.stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (blocks > 1) {
      _tile_loadd(7, columns + (steps + k) * tile, kLine);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (panels > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0], kLine);
  if constexpr (blocks > 1) _tile_stored(1, sums[1], kLine);
  if constexpr (panels > 1) _tile_stored(2, sums[2], kLine);
  if constexpr (panels > 1 && blocks > 1) _tile_stored(3, sums[3], kLine);
}

// The same of whole numbers and one tile of columns: [weights, digit, row,
// column].
template <int panels, class Weights>
void SumDigits(Weights& weights, const int8_t* columns, int64_t steps,
               int32_t (*sums)[kTile][kTile]) {
  constexpr int64_t tile = kTile * kLine;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t k = 0; k < steps; ++k) {
    const int8_t* digits = columns + k * kDigits * tile;
    Lines lines = weights(k, 0);
    _tile_loadd(6, lines.first, lines.stride);
    _tile_loadd(7, digits, kLine);
    _tile_dpbssd(0, 6, 7);
    _tile_loadd(7, digits + tile, kLine);
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(7, digits + 2 * tile, kLine);
    _tile_dpbssd(2, 6, 7);
    if constexpr (panels > 1) {
      lines = weights(k, kTile);
      _tile_loadd(6, lines.first, lines.stride);
      _tile_dpbssd(5, 6, 7);
      _tile_loadd(7, digits + tile, kLine);
      _tile_dpbssd(4, 6, 7);
      _tile_loadd(7, digits, kLine);
      _tile_dpbssd(3, 6, 7);
    }
  }
  _tile_stored(0, sums[0], kLine);
  _tile_stored(1, sums[1], kLine);
  _tile_stored(2, sums[2], kLine);
  _tile_stored(3, sums[3], kLine);
  _tile_stored(4, sums[4], kLine);
  _tile_stored(5, sums[5], kLine);
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

// The first numbers of a column from one on, and zeros.
inline Vector Some(const uint16_t* x, int64_t left) {
  return left >= kLanes ? Load(x) : LoadFirst(x, std::max<int64_t>(left, 0));
}

// A column, in tiles that are still to be transposed; what it is in units of.
inline float PackColumn(const uint16_t* x, int64_t inputs, uint16_t* lines) {
  for (int64_t k = 0; k < inputs; k += kDepth<uint16_t>) {
    uint16_t* line = lines + k * kTile;
    Store(line, Some(x + k, inputs - k));
    Store(line + kLanes, Some(x + k + kLanes, inputs - k - kLanes));
  }
  return 1;
}

inline float PackColumn(const uint16_t* x, int64_t inputs, int8_t* lines) {
  Vector most = {}, none[1] = {};
  for (int64_t i = 0; i < inputs; i += kLanes) {
    const Vector lanes = Some(x + i, inputs - i);
    const Vector size = lanes < 0 ? -lanes : lanes;
    most = size > most ? size : most;
    none[0] += lanes - lanes;  // What is not finite stays so.
  }
  float lost[1];
  Sums(none, lost);
  const float largest = Largest(reinterpret_cast<const float*>(&most), kLanes);
  const bool is_there = largest > 1e-30f && lost[0] == 0;
  // The power of two that is not larger: then most numbers are exact.
  const uint32_t bits = Bits<uint32_t>(&largest) & 0x7f800000;
  const float power = Bits<float>(&bits);
  const float units = is_there ? (1 << 19) / power : 0;
  for (int64_t i = 0; i < inputs; i += kLanes) {
    auto left = Full<int32_t>(_mm512_maskz_cvtps_epi32(
        kAll, __m512(Some(x + i, inputs - i) * units)));
    int8_t* line = lines + i / kLine * kDigits * kTile * kLine + i % kLine;
    for (int64_t digit = 0; digit < kDigits; ++digit) {
      const auto rest = ((left + 64) & 127) - 64;
      const auto last = digit < kDigits - 1 ? rest : left;
      const __m128i bytes = _mm512_maskz_cvtepi32_epi8(kAll, __m512i(last));
      std::memcpy(line + digit * kTile * kLine, &bytes, sizeof bytes);
      left = (left - rest) >> 7;
    }
  }
  return is_there ? power / (1 << 19) : lost[0];
}

// Steps that `inputs` numbers take, the last one with zeros.
template <class T>
int64_t Steps(int64_t inputs) {
  return (inputs + kDepth<T> - 1) / kDepth<T>;
}

// Columns as tiles: [block of 16, step, tile of a step]. And what they are in
// units of.
template <class T>
struct Columns {
  static constexpr int64_t kStep =
      (std::is_same_v<T, int8_t> ? kDigits : 1) * kTile * kDepth<T>;

  T* tiles;
  float* units;
  int64_t steps;

  T* Block(int64_t block) const { return tiles + block * steps * kStep; }
};

// A block of 16 columns [16, inputs] becomes tiles.
template <class T>
void Pack(const uint16_t* x, int64_t inputs, int64_t columns, T* tiles,
          float* units) {
  std::memset(tiles, 0, Steps<T>(inputs) * Columns<T>::kStep * sizeof(T));
  for (int t = 0; t < std::min(columns, kTile); ++t) {
    units[t] = PackColumn(x + t * inputs, inputs, tiles + t * kDepth<T>);
  }
  auto* lines = reinterpret_cast<Vector*>(tiles);
  const int64_t bytes = Steps<T>(inputs) * Columns<T>::kStep * sizeof(T);
  for (int64_t i = 0; i < bytes / kLine; i += kTile) {
    Vector tile[kTile];
    std::memcpy(tile, lines + i, sizeof tile);
    Transpose(tile);
    std::memcpy(lines + i, tile, sizeof tile);
  }
}

// All columns as tiles for weights of a type, packed by a team.
template <class T, class Team>
Columns<T> Packed(Team& team, const T*, const uint16_t* x, int64_t inputs,
                  int64_t columns) {
  const int64_t blocks = (columns + kTile - 1) / kTile;
  const int64_t steps = Steps<T>(inputs);
  const Columns<T> packed{
      Near<kInputs, T>(blocks * steps * Columns<T>::kStep),
      Near<kUnits, float>(blocks * kTile), steps};
  team.Share(blocks, 1, [=](int64_t from, int64_t to, int64_t) {
    for (; from < to; ++from) {
      Pack(x + from * kTile * inputs, inputs, columns - from * kTile,
           packed.Block(from), packed.units + from * kTile);
    }
    Written();
  });
  return packed;
}

// Rows of weights as lines of tiles: where they are, or, with zeros after the
// last input, nearby.
template <class T>
class Panel {
 public:
  Panel(const T* w, const T* next, int64_t rows, int64_t inputs)
      : w_(w), next_(next), rows_(rows), stride_(inputs) {
    if (rows % kTile == 0 && inputs % kDepth<T> == 0) return;
    stride_ = Steps<T>(inputs) * kDepth<T>;
    T* near = Near<kWeights, T>(kPanel * stride_);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(w + r * inputs, inputs, near + r * stride_);
      std::fill_n(near + r * stride_ + inputs, stride_ - inputs, T());
    }
    Written();
    w_ = near;
  }

  Lines operator()(int64_t step, int64_t row) {
    if (next_ && row == 0 && step == fetched_) Fetch();
    return {w_ + row * stride_ + step * kDepth<T>,
            stride_ * static_cast<int64_t>(sizeof(T))};
  }

 private:
  // Asks for a part of the rows that come next, in the order in which they lie:
  // no core guesses early enough what will be read.
  void Fetch() {
    const auto* next = reinterpret_cast<const char*>(next_);
    const int64_t size = rows_ * kLine;
    for (int64_t at = fetched_ * size; at < (fetched_ + 1) * size; at += 64) {
      __builtin_prefetch(next + at, 0, 2);
    }
    ++fetched_;
  }

  const T *w_, *const next_;
  const int64_t rows_;
  int64_t stride_, fetched_ = 0;
};

// A tile of sums, lines of it, goes to its results.
inline void Unpack(Vector (&lines)[kTile], int64_t rows, int64_t columns,
                   Result y) {
  Transpose(lines);
  for (int t = 0; t < std::min(columns, kTile); ++t) {
    if (rows >= kTile) {
      Store(&y(0, t), lines[t]);
    } else {
      StoreFirst(&y(0, t), lines[t], rows);
    }
  }
}

// Products of a panel with columns from `t` on, of which there are `left`.
inline void MultiplyPanel(Panel<uint16_t>& panel, int64_t rows,
                          const Columns<uint16_t>& columns, int64_t t,
                          int64_t left, Result y) {
  alignas(64) float sums[4][kTile][kTile];
  const bool is_tall = rows > kTile, is_wide = left > kTile;
  using Weights = Panel<uint16_t>;
  const auto sum = is_tall ?
      is_wide ? SumTiles<2, 2, Weights> : SumTiles<2, 1, Weights> :
      is_wide ? SumTiles<1, 2, Weights> : SumTiles<1, 1, Weights>;
  sum(panel, columns.Block(t / kTile), columns.steps, sums);
  for (int i = 0; i < 4; ++i) {
    const int64_t row = i / 2 * kTile, column = i % 2 * kTile;
    if (row >= rows || column >= left) continue;
    Vector lines[kTile];
    std::memcpy(lines, sums[i], sizeof lines);
    Unpack(lines, rows - row, left - column, y.From(row, t + column));
  }
}

inline void MultiplyPanel(Panel<int8_t>& panel, int64_t rows,
                          const Columns<int8_t>& columns, int64_t t,
                          int64_t left, Result y) {
  alignas(64) int32_t sums[2 * kDigits][kTile][kTile];
  for (int64_t block = t / kTile; left > 0 && block < t / kTile + 2; ++block) {
    (rows > kTile ? SumDigits<2, Panel<int8_t>> : SumDigits<1, Panel<int8_t>>)(
        panel, columns.Block(block), columns.steps, sums);
    for (int64_t row = 0; row < rows; row += kTile) {
      Vector lines[kTile];
      for (int r = 0; r < kTile; ++r) {
        const auto digit = [&](int i) {
          return __builtin_convertvector(
              Bits<Full<int32_t>>(&sums[row / kTile * kDigits + i][r]), Vector);
        };
        lines[r] = (digit(2) * 16384 + digit(1) * 128 + digit(0)) *
                   Load(columns.units + block * kTile);
      }
      Unpack(lines, rows - row, left, y.From(row, block * kTile));
    }
    left -= kTile;
  }
}

// y(o, t) = sum_i w[o, i] x[t, i] of some rows of a matrix, of packed columns.
// Those at `next` are multiplied after them.
template <class T>
void MultiplyTiles(const Factor<T>& factor, const Columns<T>& columns,
                   int64_t from, int64_t to, int64_t inputs, int64_t width,
                   const T* next) {
  const MatrixUnit unit;
  for (; from < to; from += kPanel) {
    const int64_t rows = std::min(kPanel, to - from);
    const T* w = factor.w + from * inputs;
    Panel<T> panel(w, from + rows < to ? w + rows * inputs : next, rows,
                   inputs);
    for (int64_t t = 0; t < width; t += kPanel) {
      MultiplyPanel(panel, rows, columns, t, width - t, factor.y.From(from, 0));
    }
  }
}
#else
constexpr bool kMatrixUnit = false;
inline bool HasMatrixUnit() { return false; }
#endif
