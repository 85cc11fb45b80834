// A reader-writer lock of atomics that is fair by phases: a reader waits for at most one writer's turn, a writer for the
// readers that came before it (Brandenburg and Anderson 2010, the ticket form). Waiting threads give up the processor.
#ifndef LOADMASTER_INDEX_LOCK_HPP
#define LOADMASTER_INDEX_LOCK_HPP

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace lm {

class PhaseFairLock {
 public:
  void lock_shared() {
    const uint32_t writer = readers_in_.fetch_add(kReader, std::memory_order_acquire) & kWriterBits;
    if (writer == 0) return;
    Wait wait;
    while ((readers_in_.load(std::memory_order_acquire) & kWriterBits) == writer) wait.step();
  }
  void unlock_shared() { readers_out_.fetch_add(kReader, std::memory_order_release); }

  void lock() {
    const uint32_t ticket = writers_in_.fetch_add(1, std::memory_order_relaxed);
    Wait wait;
    while (writers_out_.load(std::memory_order_acquire) != ticket) wait.step();
    const uint32_t bits = kPresent | (ticket & kPhase);
    const uint32_t before = readers_in_.fetch_add(bits, std::memory_order_acq_rel) & ~kWriterBits;
    while (readers_out_.load(std::memory_order_acquire) != before) wait.step();
  }
  void unlock() {
    readers_in_.fetch_and(~kWriterBits, std::memory_order_release);
    writers_out_.fetch_add(1, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kReader = 256, kWriterBits = 3, kPresent = 2, kPhase = 1;

  struct Wait {
    int steps = 0;
    void step() {
      if (++steps > 64) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  };

  alignas(64) std::atomic<uint32_t> readers_in_{0};
  alignas(64) std::atomic<uint32_t> readers_out_{0};
  alignas(64) std::atomic<uint32_t> writers_in_{0};
  std::atomic<uint32_t> writers_out_{0};
};

struct Reading {
  explicit Reading(PhaseFairLock &lock) : lock_(lock) { lock_.lock_shared(); }
  ~Reading() { lock_.unlock_shared(); }
  PhaseFairLock &lock_;
};
struct Writing {
  explicit Writing(PhaseFairLock &lock) : lock_(lock) { lock_.lock(); }
  ~Writing() { lock_.unlock(); }
  PhaseFairLock &lock_;
};

}  // namespace lm

#endif
