// Slots of a block copied into a cache.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "thread_team.h"

// Keys or values of a cache or block: `count` heads of all rows and layers, of
// which a row has `heads`. A head has some lines, keys one for each channel and
// values one alone; a line has items of so many bytes, one for each slot.
struct Array {
  char* data;
  int64_t count, heads, lines, bytes, slots;

  char* Head(int64_t index) const {
    return data + index * lines * slots * bytes;
  }
};

// Items of a size that is known are moved by single instructions.
template <int64_t known>
void CopyHead(const char* from, const Array& source, char* to,
              const Array& target, const int32_t* chosen, int64_t count) {
  const int64_t bytes = known ? known : target.bytes;
  for (int64_t line = 0; line < target.lines; ++line) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = std::clamp<int64_t>(chosen[i], 0, source.slots - 1);
      std::memcpy(to + i * bytes, from + slot * bytes, bytes);
    }
    from += source.slots * bytes;
    to += target.slots * bytes;
  }
}

// `size` slots for each row, from where `starts` says, or as near as they fit.
inline void Commit(xla::ffi::ThreadPool pool, std::vector<Array> targets,
                   std::vector<Array> sources, const int32_t* chosen,
                   int64_t size, const int32_t* starts, int64_t rows) {
  int64_t most = 0;
  for (const Array& x : targets) most = std::max(most, x.count);
  Team(pool).Share(targets.size() * most, 8,
                   [&](int64_t item, int64_t end, int64_t) {
    for (; item < end; ++item) {
      const Array& target = targets[item / most];
      const Array& source = sources[item / most];
      const int64_t head = item % most;
      if (head >= target.count) continue;
      const int64_t row = head / target.heads % rows;
      const int64_t start =
          std::clamp<int64_t>(starts[row], 0, target.slots - size);
      auto copy = target.bytes == 4   ? CopyHead<4>
                  : target.bytes == 2 ? CopyHead<2>
                                      : CopyHead<0>;
      copy(source.Head(head), source, target.Head(head) + start * target.bytes,
           target, chosen + row * size, size);
    }
  });
}
