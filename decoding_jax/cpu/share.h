// Work for the threads of XLA.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

// Hands out items to the threads of a pool and to this one: a part of those
// left to whoever asks, since a core that others use as well is slower.
//
// At a time `least` items, or a multiple of that; `compute` is called with the
// first one and the one behind the last.
void Share(xla::ffi::ThreadPool pool, int64_t items, int64_t least,
           std::function<void(int64_t, int64_t)> compute) {
  struct Progress {
    std::atomic<int64_t> taken{0}, done{0};
  };
  // A thread may come when all is done, and then finds only this.
  auto progress = std::make_shared<Progress>();
  const int64_t threads = pool.num_threads();
  std::function<void()> work = [=] {
    int64_t from = progress->taken;
    while (from < items) {
      const int64_t part = (items - from) / (2 * threads) / least * least;
      const int64_t to = std::min(items, from + std::max(part, least));
      if (!progress->taken.compare_exchange_weak(from, to)) continue;
      compute(from, to);
      progress->done += to - from;
      from = progress->taken;
    }
  };
  for (int64_t i = 1; i < threads && i * least < items; ++i) {
    pool.Schedule(std::function<void()>(work));
  }
  work();
  while (progress->done < items) std::this_thread::yield();
}
