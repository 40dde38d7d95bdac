// Products of matrices and a few columns.
//
// A decoder's step multiplies every weight by a few columns: reading weights is
// what takes the time. So they are read once, where they are and in the order
// in which they lie, and are not packed into other arrays first.
//
// A tile is the products of some rows with some columns, each a register of
// partial sums. Sums have the same order in any tile: a column's product has
// the same bits whatever columns are beside it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "dot_terms.h"
#include "factor.h"
#include "groups.h"
#include "matrix_unit.h"
#include "simd.h"
#include "thread_team.h"

// Rows of a tile, and columns at most: with a register for each row or for each
// column, and one more, all sums stay in registers.
constexpr int kRows = 4, kColumns = kRegisters == 32 ? 6 : 3;
// Of half as many rows there can be more columns: weights are converted once,
// but columns are read twice as often, from the first cache if they have so few
// bytes.
constexpr int kHalf = kRows / 2, kMore = kRegisters == 32 ? 8 : kColumns;
constexpr int64_t kNearest = 3 << 13;
// Bytes of weights that a core takes at a time, at least.
constexpr int64_t kLeast = 1 << 15;
// Bytes of columns that are multiplied with all rows before the next ones are:
// as many as stay near a core.
constexpr int64_t kNearby = 1 << 19;

// Numbers from those that are multiplied to others that are asked for again: a
// core that waits for much drops what else it is to fetch. (Lines of which a
// step needs half are asked for twice as it is.)
constexpr int64_t kAgain = 256;

// Calls a function with each of some vectors, which stay in registers, and each
// of others, which pass by.
template <int some, int others, class Some, class Other, class Function>
inline void Pairs(Some get, Other other, Function function) {
  decltype(get(0)) all[some];
#pragma GCC unroll 8
  for (int i = 0; i < some; ++i) all[i] = Kept(get(i));
#pragma GCC unroll 8
  for (int j = 0; j < others; ++j) {
    const auto one = Kept(other(j));
#pragma GCC unroll 8
    for (int i = 0; i < some; ++i) function(i, j, all[i], one);
  }
}

// y(r, t) = sum_i w[r, i] x[t, i] of `rows` rows and `columns` columns.
//
// Of those that come next, some are fetched: no core guesses that early what
// will be read.
template <int rows, int columns, int fetched, class T, class X, class N>
void Tile(const T* w, const X* x, Result y, int64_t inputs, const N* next) {
  using Terms = ::Terms<X>;
  Vector sums[columns][rows] = {};
  const auto add = [&](int64_t i, auto load) {
    const auto row = [=](int r) { return load(w + r * inputs + i); };
    const auto column = [=](int t) { return load(x + t * inputs + i); };
    using Some = typename Terms::Some;
    if constexpr (columns < rows) {
      Pairs<columns, rows>(column, row, [&](int t, int r, Some a, Some b) {
        sums[t][r] = Terms::Add(sums[t][r], b, a);
      });
    } else {
      Pairs<rows, columns>(row, column, [&](int r, int t, Some a, Some b) {
        sums[t][r] = Terms::Add(sums[t][r], a, b);
      });
    }
  };
  constexpr bool is_line = sizeof(N) * Terms::count == 64;
  const int64_t left = inputs % Terms::count, whole = inputs - left;
  for (int64_t i = 0; i < whole; i += Terms::count) {
#pragma GCC unroll 8
    for (int r = 0; r < fetched; ++r) {
      __builtin_prefetch(next + r * inputs + i, 0, 2);
      if (is_line) __builtin_prefetch(w + r * inputs + i + kAgain, 0, 2);
    }
    add(i, [](auto* from) { return Terms::Of(from); });
  }
  if (left) {
    add(whole, [=](auto* from) { return Terms::First(from, left); });
  }
#pragma GCC unroll 8
  for (int t = 0; t < columns; ++t) Sums(sums[t], &y(0, t));
}

// `Tile` of as many columns as are asked for, up to `most`.
template <int rows, int most, int fetched, class... Rest>
void TileOf(int64_t columns, Rest... rest) {
  if constexpr (most > 1) {
    if (columns < most) {
      return TileOf<rows, most - 1, fetched>(columns, rest...);
    }
  }
  Tile<rows, most, fetched>(rest...);
}

// The columns of some rows, in tiles that are about equally wide. Each fetches
// a part of the next rows: if the first did, memory would rest in the others.
template <int rows, class T, class X, class N>
void Tiles(const T* w, const X* x, Result y, int64_t inputs, int64_t used,
           const N* next) {
  const int64_t tiles = (used + kColumns - 1) / kColumns;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t from = used * i / tiles, first = rows * i / tiles;
    const int64_t columns = used * (i + 1) / tiles - from;
    const int64_t fetched = rows * (i + 1) / tiles - first;
    const auto multiply = [&](auto count) {
      TileOf<rows, kColumns, decltype(count)::value>(
          columns, w, x + from * inputs, y.From(0, from), inputs,
          next + first * inputs);
    };
    constexpr int half = rows / 2, one = rows > 1;
    if (fetched > 1) {
      multiply(std::integral_constant<int, half>());
    } else if (fetched == 1) {
      multiply(std::integral_constant<int, one>());
    } else {
      multiply(std::integral_constant<int, 0>());
    }
  }
}

template <int rows, class T, class X>
void Rows(const T* w, const X* x, Result y, int64_t inputs, int64_t used,
          const T* next) {
  const bool is_converted = !std::is_same_v<T, X>;
  const int64_t bytes = used * inputs * sizeof *x;
  if (used <= kColumns) {
    constexpr int fetched = rows > 1 ? rows : 0;
    TileOf<rows, kColumns, fetched>(used, w, x, y, inputs, next);
  } else if (rows == kRows && used <= kMore &&
             (is_converted || bytes <= kNearest)) {
    for (int r = 0; r < kRows; r += kHalf) {
      constexpr auto less = Tile<kHalf, kMore - 1, kHalf, T, X, T>;
      constexpr auto most = Tile<kHalf, kMore, kHalf, T, X, T>;
      (used < kMore ? less : most)(w + r * inputs, x, y.From(r, 0), inputs,
                                   next + r * inputs);
    }
  } else {  // Each of several tiles would convert all weights again.
    Tiles<rows>(Converted<kWeights, X>(w, rows * inputs), x, y, inputs, used,
                next);
  }
}

// y(o, t) = sum_i w[o, i] x[t, i] of some rows of a matrix; those at `next` are
// multiplied after them.
template <class T, class X>
void Multiply(const T* w, const X* x, Result y, int64_t from, int64_t to,
              int64_t inputs, int64_t columns, const T* next) {
  const auto multiply = [&](auto count) {
    constexpr int rows = decltype(count)::value;
    for (; from + rows <= to; from += rows) {
      const T* here = w + from * inputs;
      Rows<rows>(here, x, y.From(from, 0), inputs, columns,
                 from + rows < to ? here + rows * inputs : next);
    }
  };
  multiply(std::integral_constant<int, kRows>());
  multiply(std::integral_constant<int, 1>());
}

// The same of all columns. Compiled once, and not for each that calls it.
template <class T, class X>
[[gnu::noinline]] void MultiplyAll(const Factor<T>& factor, const X* x,
                                   int64_t from, int64_t to, int64_t inputs,
                                   int64_t columns, const T* next) {
  const int64_t most = std::max<int64_t>(
      kNearby / (inputs * sizeof *x) / kColumns * kColumns, kMore);
  for (int64_t t = 0; t < columns; t += most) {
    Multiply(factor.w, x + t * inputs, factor.y.From(0, t), from, to, inputs,
             std::min(most, columns - t), next);
  }
}

// The weights of a row, of those of all matrices; `none` after the last.
template <class T>
const T* RowOf(const std::vector<Factor<T>>& factors, int64_t row,
               int64_t inputs, const T* none) {
  for (const auto& factor : factors) {
    if (row < factor.y.outputs) {
      return factor.w + row * RowBytes<T>(inputs) / sizeof(T);
    }
    row -= factor.y.outputs;
  }
  return none;
}

// Hands out the rows of several matrices together. `multiply` is given a
// factor, the first row, the one after the last, and the weights that come
// next; then `finish` what it is a factor's number for.
template <class T, class Multiply, class Finish>
void ShareRows(Team& team, const std::vector<Factor<T>>& factors, int64_t part,
               int64_t inputs, Multiply multiply, Finish finish) {
  int64_t rows = 0;
  for (const auto& factor : factors) rows += factor.y.outputs;
  team.Share(rows, part, [&](int64_t from, int64_t to, int64_t next) {
    for (size_t i = 0; i < factors.size(); ++i) {
      const int64_t outputs = factors[i].y.outputs;
      const int64_t first = std::max<int64_t>(from, 0);
      const int64_t last = std::min(to, outputs);
      if (first < last) {
        // What is near costs nothing to fetch.
        const T* here =
            factors[i].w + first * RowBytes<T>(inputs) / sizeof(T);
        multiply(factors[i], first, last, RowOf(factors, next, inputs, here));
        finish(i, first, last);
      }
      from -= outputs;
      to -= outputs;
    }
  });
}

// Products of weights in groups. Some rows at a time become numbers of X
// rounded to A, which `multiply` is given, and where their products go.
template <class A, class X, class T, class Multiply, class Finish>
void ProductsInGroups(Team& team, const std::vector<Factor<T>>& factors,
                      int64_t inputs, int64_t rows, Multiply multiply,
                      Finish finish) {
  const int64_t bytes = rows * RowBytes<T>(inputs);
  ShareRows(team, factors, rows * (kLeast / bytes + 1), inputs,
            [=](const auto& factor, int64_t from, int64_t to, const T* next) {
    for (; from < to; from += rows) {
      const int64_t last = std::min(from + rows, to);
      const auto* after = last < to ?
          factor.w + last * RowBytes<T>(inputs) : next;
      const X* near = InGroups<A, X>(factor, from, last - from, inputs, after);
      multiply(Factor<X>{near, factor.y.From(from, 0)}, last - from);
    }
  }, finish);
}

// Products of several matrices with the same columns; see `ShareRows`.
template <class T, class X, class Finish>
void Products(Team& team, const std::vector<Factor<T>>& factors, const X* x,
              int64_t inputs, int64_t columns, Finish finish) {
  const auto share = [&](int64_t rows, auto multiply) {
    const int64_t bytes = rows * inputs * sizeof(T);
    ShareRows(team, factors, rows * (kLeast / bytes + 1), inputs, multiply,
              finish);
  };
  if constexpr (kMatrixUnit && std::is_same_v<X, uint16_t>) {
    if (HasMatrixUnit()) {
      const auto packed = Packed(team, factors[0].w, x, inputs, columns);
      return share(kPanel, [=](const auto& factor, int64_t from, int64_t to,
                               const T* next) {
        MultiplyTiles(factor, packed, from, to, inputs, columns, next);
      });
    }
  }
  share(kRows, [=](const auto& factor, int64_t from, int64_t to,
                   const T* next) {
    MultiplyAll(factor, x, from, to, inputs, columns, next);
  });
}

// The same of weights in groups, which are rounded to A.
template <class A, class X, class T, class Finish>
void GroupProducts(Team& team, const std::vector<Factor<T>>& factors,
                   const X* x, int64_t inputs, int64_t columns, Finish finish) {
  if constexpr (kMatrixUnit && std::is_same_v<X, uint16_t>) {
    if (HasMatrixUnit()) {
      const auto packed = Packed(team, x, x, inputs, columns);
      return ProductsInGroups<A, X>(
          team, factors, inputs, kPanel, [=](const auto& factor, int64_t rows) {
        MultiplyTiles(factor, packed, 0, rows, inputs, columns,
                      static_cast<const X*>(nullptr));
      }, finish);
    }
  }
  // As many as stay in the first cache.
  const int64_t bytes = kRows * inputs * sizeof(X);
  const int64_t rows = kRows * std::clamp<int64_t>(kNearest / bytes, 1, kRows);
  ProductsInGroups<A, X>(
      team, factors, inputs, rows, [=](const auto& factor, int64_t rows) {
    MultiplyAll(factor, x, 0, rows, inputs, columns, factor.w);
  }, finish);
}
