// Work for the threads of XLA.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

// Threads of a pool that share the work of one call, stage after stage.
//
// They come when the first stage has work for them, and stay until the call
// ends: to wake a thread takes as long as a product of a small model. One that
// comes late, or never, is not waited for.
class Team {
 public:
  using Compute = std::function<void(int64_t, int64_t)>;

  explicit Team(xla::ffi::ThreadPool pool)
      : pool_(pool), threads_(pool.num_threads()),
        stages_(std::make_shared<std::deque<Stage>>(1)) {}
  ~Team() { Next().is_last = true; Begin(); }
  Team(const Team&) = delete;

  // Hands out items to all: a part of those left to whoever asks, since a core
  // that others use as well is slower. At a time `least` items, or a multiple
  // of that; `compute` is called with the first one and the one after the
  // last.
  void Share(int64_t items, int64_t least, Compute compute) {
    if (items <= least) return compute(0, items);
    Stage& stage = Next();
    stage.items = items, stage.least = least, stage.parts = 2 * threads_;
    stage.compute = std::move(compute);
    Begin();
    for (; helpers_ < std::min(threads_ - 1, (items - 1) / least); ++helpers_) {
      // The stages outlive whoever comes when all is done.
      pool_.Schedule([stages = stages_, first = &stage] { Follow(first); });
    }
    Work(stage);
    while (stage.done < items) std::this_thread::yield();
  }

 private:
  struct Stage {
    int64_t items = 0, least = 1, parts = 1;
    Compute compute;
    bool is_last = false;
    std::atomic<int64_t> taken{0}, done{0};
    std::atomic<Stage*> next{nullptr};
  };

  // A stage that nobody but this thread knows of, until it begins.
  Stage& Next() { return stages_->emplace_back(); }

  void Begin() {
    Stage& stage = stages_->back();
    now_->next.store(&stage);
    now_ = &stage;
  }

  static void Work(Stage& stage) {
    int64_t from = stage.taken;
    while (from < stage.items) {
      const int64_t part =
          (stage.items - from) / stage.parts / stage.least * stage.least;
      const int64_t to =
          std::min(stage.items, from + std::max(part, stage.least));
      if (!stage.taken.compare_exchange_weak(from, to)) continue;
      stage.compute(from, to);
      stage.done += to - from;
      from = stage.taken;
    }
  }

  static void Follow(Stage* stage) {
    while (!stage->is_last) {
      Work(*stage);
      Stage* next;
      while ((next = stage->next) == nullptr) std::this_thread::yield();
      stage = next;
    }
  }

  xla::ffi::ThreadPool pool_;
  const int64_t threads_;
  // A deque leaves its items where they are.
  std::shared_ptr<std::deque<Stage>> stages_;
  Stage* now_ = &stages_->front();
  int64_t helpers_ = 0;
};
