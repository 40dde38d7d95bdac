// Work for the threads of XLA.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "xla/ffi/api/ffi.h"

// Threads of a pool that share the work of one call, stage after stage.
//
// No thread of the pool ever waits for another one to come: calls that run at
// once may have all threads to themselves, and a queue that is full runs what
// is scheduled in the very thread that schedules it. So a helper takes what
// there is to do, looks out for the next stage for a moment, since to wake a
// thread takes as long as a product of a small model, and leaves. The owner
// does what nobody has taken. It waits for items alone that some thread is
// computing, which never waits meanwhile: nothing that is computed may share
// work itself.
class Team {
 public:
  // Called with the first item of a part and the one after its last, and the
  // first one of the part that this thread computes next, if any: what that
  // needs can be fetched meanwhile.
  using Compute = std::function<void(int64_t, int64_t, int64_t)>;

  explicit Team(xla::ffi::ThreadPool pool)
      : pool_(pool),
        threads_(std::clamp<int64_t>(pool.num_threads(), 1, Most())),
        work_(std::make_shared<Work>()), now_(&work_->stages.front()) {}
  ~Team() { Next().is_last = true; Begin(); }
  Team(const Team&) = delete;

  // Hands out items to all: a part of those left to whoever asks, since a core
  // that others use as well is slower. A part is `least` items, or a multiple.
  void Share(int64_t items, int64_t least, Compute compute) {
    if (items <= least) return compute(0, items, items);
    Stage& stage = Next();
    stage.items = items, stage.least = least, stage.parts = 2 * threads_;
    stage.compute = std::move(compute);
    Begin();
    CallHelpers(std::min(threads_ - 1, (items - 1) / least));
    Take(stage);
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

  // What helpers know. It outlives whoever comes when all is done.
  struct Work {
    const std::thread::id owner = std::this_thread::get_id();
    // A deque leaves its items where they are.
    std::deque<Stage> stages{1};
    // Helpers that were called and have not left, whether they came or not.
    std::atomic<int64_t> helpers{0};
  };

  // Threads of a call, at most: where each core is a device, one is enough.
  static int64_t Most() {
    static const char* const most = std::getenv("DECODING_JAX_THREADS");
    return most ? std::max(std::atoll(most), 1LL) : INT64_MAX;
  }

  // A stage that nobody but this thread knows of, until it begins.
  Stage& Next() { return work_->stages.emplace_back(); }

  void Begin() {
    Stage& stage = work_->stages.back();
    now_->next.store(&stage);
    now_ = &stage;
  }

  // Calls as many as are missing.
  void CallHelpers(int64_t wanted) {
    for (int64_t n = work_->helpers; n < wanted; ++n) {
      ++work_->helpers;
      pool_.Schedule([work = work_, stage = now_] { Help(*work, stage); });
    }
  }

  // Takes a part: its first item, and the one after its last.
  static std::pair<int64_t, int64_t> Part(Stage& stage) {
    int64_t from = stage.taken, to = from;
    while (from < stage.items) {
      const int64_t part =
          (stage.items - from) / stage.parts / stage.least * stage.least;
      to = std::min(stage.items, from + std::max(part, stage.least));
      if (stage.taken.compare_exchange_weak(from, to)) break;
    }
    return {from, to};
  }

  static void Take(Stage& stage) {
    auto [from, to] = Part(stage);
    while (from < stage.items) {
      const auto next = Part(stage);
      stage.compute(from, to, next.first);
      stage.done += to - from;
      std::tie(from, to) = next;
    }
  }

  static void Help(Work& work, Stage* stage) {
    // In the owner's thread it is in the owner's way.
    if (std::this_thread::get_id() != work.owner) {
      for (; stage != nullptr && !stage->is_last; stage = After(work, *stage)) {
        Take(*stage);
      }
      if (stage == nullptr) return;
    }
    --work.helpers;
  }

  // The stage after one of which nothing is left; null, and the helper has
  // left, where none begins soon.
  static Stage* After(Work& work, Stage& stage) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    do {
      if (Stage* next = stage.next) return next;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
    --work.helpers;
    // The owner may just have counted on this one.
    Stage* next = stage.next;
    if (next != nullptr) ++work.helpers;
    return next;
  }

  // How long a helper looks out: a few times what it takes to wake one.
  static constexpr std::chrono::microseconds kPatience{50};

  xla::ffi::ThreadPool pool_;
  const int64_t threads_;
  std::shared_ptr<Work> work_;
  Stage* now_;
};
