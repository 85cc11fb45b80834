// The sorted array for shards that are only read: keys in order under levels of line segments, each of which predicts a
// rank within a fixed error (a greedy cone per segment). The number of levels is logarithmic for any keys.
#ifndef LOADMASTER_INDEX_SORTED_HPP
#define LOADMASTER_INDEX_SORTED_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "model.hpp"

namespace lm {

class SortedArray {
 public:
  explicit SortedArray(Context &context) : context_(context) {}
  SortedArray(const SortedArray &) = delete;
  SortedArray &operator=(const SortedArray &) = delete;

  int64_t depth() const { return levels_ + 1; }
  int64_t count() const { return count_; }

  bool load(const uint64_t *keys, const uint64_t *payloads, int64_t count) {
    keys_ = context_.pool.take_array<uint64_t>(static_cast<size_t>(std::max<int64_t>(count, 1)));
    payloads_ = context_.pool.take_array<uint64_t>(static_cast<size_t>(std::max<int64_t>(count, 1)));
    if (keys_ == nullptr || payloads_ == nullptr) return false;
    if (count > 0) {
      std::memcpy(keys_, keys, 8 * static_cast<size_t>(count));
      std::memcpy(payloads_, payloads, 8 * static_cast<size_t>(count));
    }
    count_ = count;
    int64_t below = count;
    while (below > kTop && levels_ < kMostLevels) {
      const bool bottom = levels_ == 0;
      const auto key_of = [&](int64_t i) { return bottom ? keys_[i] : segments_[levels_ - 1][i].first; };
      const int64_t made = cut(key_of, below, error_of(levels_), nullptr);
      Segment *segments = context_.pool.take_array<Segment>(static_cast<size_t>(made + 1));
      if (segments == nullptr) return false;
      cut(key_of, below, error_of(levels_), segments);
      segments[made] = Segment{kLastKey, 0, below};
      segments_[levels_] = segments;
      lengths_[levels_++] = made;
      below = made;
    }
    context_.count_leaf(LM_SORTED, context_.generation, 1);
    return true;
  }

  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    int64_t starts[kGroup];
    for (int64_t i = 0; i < count; ++i) {
      starts[i] = predict(keys[i]);
      __builtin_prefetch(keys_ + std::max<int64_t>(0, starts[i] - kError / 2));
      __builtin_prefetch(keys_ + std::min(count_, starts[i] + kError / 2));
    }
    for (int64_t i = 0; i < count; ++i) {
      starts[i] = levels_ == 0 ? std::lower_bound(keys_, keys_ + count_, keys[i]) - keys_
                               : near(keys_, count_, starts[i], kError, keys[i]);
      __builtin_prefetch(payloads_ + starts[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      found[i] = starts[i] < count_ && keys_[starts[i]] == keys[i];
      payloads[i] = found[i] != 0 ? payloads_[starts[i]] : 0;
    }
  }

  // As Tree::scan.
  bool scan(uint64_t *from, uint64_t last, int64_t most, Pairs *to) const {
    int64_t at = std::lower_bound(keys_, keys_ + count_, *from) - keys_;
    for (; at < count_ && keys_[at] <= last && most > 0; ++at, --most) {
      to->keys[to->count] = keys_[at];
      to->payloads[to->count++] = payloads_[at];
    }
    if (at >= count_ || keys_[at] > last) return false;
    *from = keys_[at];
    return true;
  }

 private:
  struct Segment {
    uint64_t first;
    double slope;
    int64_t rank;
  };
  static constexpr int64_t kTop = 32, kError = 12, kInnerError = 6;
  static constexpr int kMostLevels = 24;

  static int64_t error_of(int level) { return level == 0 ? kError : kInnerError; }

  // Cuts ranks 0 .. count - 1 into segments and gives their number; stores them where `made` is not null.
  template <typename KeyOf>
  static int64_t cut(const KeyOf &key_of, int64_t count, int64_t error, Segment *made) {
    int64_t segments = 0;
    for (int64_t begin = 0; begin < count; ++segments) {
      const uint64_t first = key_of(begin);
      double low = 0, high = 1e300;
      int64_t end = begin + 1;
      for (; end < count; ++end) {
        const double distance = static_cast<double>(key_of(end) - first), rise = static_cast<double>(end - begin);
        const double least = (rise - static_cast<double>(error)) / distance;
        const double most = (rise + static_cast<double>(error)) / distance;
        if (least > high || most < low) break;
        low = std::max(low, least);
        high = std::min(high, most);
      }
      if (made != nullptr) made[segments] = Segment{first, end == begin + 1 ? 0 : (low + high) / 2, begin};
      begin = end;
    }
    return segments;
  }

  static int64_t rank_in(const Segment &segment, uint64_t key) {
    const double distance = key > segment.first ? static_cast<double>(key - segment.first) : 0;
    const double rank = segment.slope * distance;
    const int64_t room = (&segment)[1].rank - segment.rank;
    return segment.rank + (rank < static_cast<double>(room) ? static_cast<int64_t>(rank) : room);
  }

  // The first of `count` keys that is not less, known to be within the error of `start` or else beside the answer.
  static int64_t near(const uint64_t *keys, int64_t count, int64_t start, int64_t error, uint64_t key) {
    int64_t low = std::max<int64_t>(0, start - error - 1);
    int64_t length = std::min<int64_t>(count, start + error + 2) - low;
    while (length > 0) {
      const int64_t half = length / 2;
      const bool right = keys[low + half] < key;
      low = right ? low + half + 1 : low;
      length = right ? length - half - 1 : half;
    }
    return low;
  }

  int64_t predict(uint64_t key) const {
    if (levels_ == 0) return 0;
    const Segment *top = segments_[levels_ - 1];
    int64_t at = 0;
    for (int64_t i = 1; i < lengths_[levels_ - 1]; ++i) at += top[i].first <= key;
    for (int level = levels_ - 1; level > 0; --level) {
      const int64_t rank = rank_in(segments_[level][at], key);
      const Segment *below = segments_[level - 1];
      int64_t low = std::max<int64_t>(0, rank - kInnerError - 2);
      const int64_t end = std::min<int64_t>(lengths_[level - 1], rank + kInnerError + 3);
      while (low + 1 < end && below[low + 1].first <= key) ++low;
      at = low;
    }
    return std::min(rank_in(segments_[0][at], key), count_ - 1);
  }

  Context &context_;
  uint64_t *keys_ = nullptr, *payloads_ = nullptr;
  int64_t count_ = 0;
  int levels_ = 0;
  Segment *segments_[kMostLevels] = {};
  int64_t lengths_[kMostLevels] = {};
};

}  // namespace lm

#endif
