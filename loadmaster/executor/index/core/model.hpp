// The parts of the model tree: linear models, model nodes, and what all leaves of an index share.
// A model node's slope is a power of two, so its slot is exact in integers for the full range of keys, stays monotone, and
// doubling or extending its pointers moves no boundary. Leaves have models with a slope of any size.
#ifndef LOADMASTER_INDEX_MODEL_HPP
#define LOADMASTER_INDEX_MODEL_HPP

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "index.h"
#include "pool.hpp"

namespace lm {

// The largest key is kept next to every structure, which may then use it to fill what is empty.
constexpr uint64_t kLastKey = ~uint64_t{0};

constexpr int64_t kGroup = 32;  // keys whose memory is fetched together

// A child is a pointer whose low bits say what it points to.
using Child = uintptr_t;
enum Tag : uintptr_t { kModelTag = 0, kGappedTag = 1, kFlogTag = 2, kTags = 3 };

inline Tag tag_of(Child child) { return static_cast<Tag>(child & kTags); }

template <typename T>
T *node_of(Child child) {
  return reinterpret_cast<T *>(child & ~uintptr_t{kTags});
}

// Slots of 2^shift keys each from `first`, a multiple of 2^shift. Keys outside go to the slots at the ends.
struct Slots {
  uint64_t first;
  uint32_t shift, fanout;

  uint32_t of(uint64_t key) const {
    if (key <= first) return 0;
    const uint64_t slot = (key - first) >> shift;
    return slot < fanout ? static_cast<uint32_t>(slot) : fanout - 1;
  }
  uint64_t lowest_key(uint32_t slot) const { return first + (static_cast<uint64_t>(slot) << shift); }
};

struct ModelNode {
  Slots slots;
  uint32_t distinct;  // children, each counted once
  uint32_t unused;

  Child *children() { return reinterpret_cast<Child *>(this + 1); }
  const Child *children() const { return reinterpret_cast<const Child *>(this + 1); }
  static size_t bytes(uint32_t fanout) { return sizeof(ModelNode) + sizeof(Child) * fanout; }
};

// State that the leaves of an index share. Used by the one writer only.
struct Context {
  Pool pool;
  lm_config config{};
  uint32_t generation = 0;  // of the configuration
  int64_t keys = 0;
  int64_t leaves_of[4] = {};
  int64_t current_leaves = 0;  // built under this generation
  int64_t fragments = 0;
  int64_t structural_changes = 0, longest_change_ns = 0, largest_change_keys = 0;

  void count_leaf(int structure, uint32_t built, int64_t by) {
    leaves_of[structure] += by;
    if (built == generation) current_leaves += by;
  }
};

// Counts and times one structural change, which moves so many keys, for as long as it lives.
class TimedChange {
 public:
  TimedChange(Context &context, int64_t keys) : context_(context), keys_(keys), began_(std::chrono::steady_clock::now()) {}
  TimedChange(const TimedChange &) = delete;
  TimedChange &operator=(const TimedChange &) = delete;
  ~TimedChange() {
    const auto took = std::chrono::steady_clock::now() - began_;
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
    ++context_.structural_changes;
    context_.longest_change_ns = std::max(context_.longest_change_ns, ns);
    context_.largest_change_keys = std::max(context_.largest_change_keys, keys_);
  }

 private:
  Context &context_;
  int64_t keys_;
  std::chrono::steady_clock::time_point began_;
};

// Rank or position as a linear function of the key.
struct Line {
  uint64_t first = 0;
  double slope = 0, intercept = 0;

  // A position in 0 .. count - 1.
  int64_t at(uint64_t key, int64_t count) const {
    const double offset = key > first ? static_cast<double>(key - first) : 0.0;
    const double position = slope * offset + intercept;
    if (position <= 0) return 0;
    return position < static_cast<double>(count) ? static_cast<int64_t>(position) : count - 1;
  }
  void scale(double by) {
    slope *= by;
    intercept *= by;
  }
};

// Least squares of rank over key. Of many keys, every few hundredth serves: a line has two parameters.
inline Line fit_line(const uint64_t *keys, int64_t count) {
  Line line;
  if (count == 0) return line;
  line.first = keys[0];
  const double range = static_cast<double>(keys[count - 1] - keys[0]);
  if (count < 2 || range <= 0) return line;
  const int64_t stride = std::max<int64_t>(1, count / 1024);
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (int64_t i = 0; i < count; i += stride) {
    const double x = static_cast<double>(keys[i] - line.first) / range, y = static_cast<double>(i);
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  const double spread = n * sxx - sx * sx;
  const double slope = spread > 0 ? (n * sxy - sx * sy) / spread : 0;
  if (slope > 0) {
    line.slope = slope / range;
    line.intercept = (sy - slope * sx) / n;
  } else {
    line.slope = static_cast<double>(count - 1) / range;
  }
  return line;
}

// Result of an insert or erase of one key.
enum class Done { kNew, kPresent, kAbsent, kNoMemory };

struct Pair {
  uint64_t key, payload;
};

struct Pairs {
  uint64_t *keys = nullptr, *payloads = nullptr;
  int64_t count = 0;
};

}  // namespace lm

#endif
