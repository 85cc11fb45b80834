// The sorted array for shards that are only read: keys in order under a tree of tables, each of which cuts its keys' range
// into slots of equal width and says at which rank a slot begins. Slots where keys crowd have a table of their own.
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

  int64_t depth() const { return depth_ + 1; }

  bool load(const uint64_t *keys, const uint64_t *payloads, int64_t count) {
    keys_ = context_.pool.take_array<uint64_t>(static_cast<size_t>(std::max<int64_t>(count, 1)));
    payloads_ = context_.pool.take_array<uint64_t>(static_cast<size_t>(std::max<int64_t>(count, 1)));
    if (keys_ == nullptr || payloads_ == nullptr) return false;
    if (count > 0) {
      std::memcpy(keys_, keys, 8 * static_cast<size_t>(count));
      std::memcpy(payloads_, payloads, 8 * static_cast<size_t>(count));
    }
    count_ = count;
    if (count > kMostSearched) {
      root_ = make_table(0, count, 1);
      if (root_ == nullptr) return false;
    }
    context_.count_leaf(LM_SORTED, context_.generation, 1);
    return true;
  }

  // Keys of one group. What each step reads is fetched for all of them before.
  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    Ranks ranks[kGroup];
    if (root_ != nullptr)
      for (int64_t i = 0; i < count; ++i) __builtin_prefetch(root_->entries() + root_->slots.of(keys[i]));
    for (int64_t i = 0; i < count; ++i) {
      ranks[i] = ranks_of(keys[i]);
      for (int64_t at = ranks[i].begin; at < ranks[i].end; at += 8) __builtin_prefetch(keys_ + at);
    }
    for (int64_t i = 0; i < count; ++i) {
      ranks[i].begin = search(keys[i], ranks[i]);
      __builtin_prefetch(payloads_ + ranks[i].begin);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = ranks[i].begin;
      found[i] = at < count_ && keys_[at] == keys[i];
      payloads[i] = found[i] != 0 ? payloads_[at] : 0;
    }
  }

  // As Tree::scan.
  bool scan(uint64_t *from, uint64_t last, int64_t most, Pairs *to) const {
    int64_t at = search(*from, ranks_of(*from));
    for (; at < count_ && keys_[at] <= last && most > 0; ++at, --most) {
      to->keys[to->count] = keys_[at];
      to->payloads[to->count++] = payloads_[at];
    }
    if (at >= count_ || keys_[at] > last) return false;
    *from = keys_[at];
    return true;
  }

 private:
  static constexpr int64_t kMostSearched = 64;  // keys of a slot without a table of its own
  static constexpr int64_t kKeysPerSlot = 8;    // at least, on average

  struct Ranks {
    int64_t begin, end;
  };

  // An entry is the rank at which its slot begins, times two, or the address of the slot's table plus one. A table is never
  // wider than its keys, so each level of tables leaves a small part of the range that its slot had.
  struct Table {
    Slots slots;
    int64_t begin;

    uint64_t *entries() { return reinterpret_cast<uint64_t *>(this + 1); }
    const uint64_t *entries() const { return reinterpret_cast<const uint64_t *>(this + 1); }
    int64_t begin_of(uint32_t slot) const {
      const uint64_t entry = entries()[slot];
      return (entry & 1) != 0 ? table_of(entry)->begin : static_cast<int64_t>(entry >> 1);
    }
  };

  static const Table *table_of(uint64_t entry) { return reinterpret_cast<const Table *>(entry - 1); }

  // The table of the ranks begin .. end - 1, or null.
  Table *make_table(int64_t begin, int64_t end, int64_t level) {
    const uint64_t first = keys_[begin], last = keys_[end - 1];
    const uint64_t most = static_cast<uint64_t>(std::min<int64_t>((end - begin) / kKeysPerSlot, int64_t{1} << 31));
    uint32_t shift = 0;
    while ((last >> shift) - (first >> shift) >= most) ++shift;
    const Slots slots{(first >> shift) << shift, shift, static_cast<uint32_t>((last >> shift) - (first >> shift) + 1)};
    Table *made = static_cast<Table *>(context_.pool.take(sizeof(Table) + 8 * (size_t{slots.fanout} + 1)));
    if (made == nullptr) return nullptr;
    made->slots = slots;
    made->begin = begin;
    depth_ = std::max(depth_, level);
    int64_t at = begin;
    for (uint32_t slot = 0; slot < slots.fanout; ++slot) {
      const int64_t low = at;
      while (at < end && slots.of(keys_[at]) == slot) ++at;
      made->entries()[slot] = static_cast<uint64_t>(low) << 1;
      if (at - low <= kMostSearched) continue;
      const Table *below = make_table(low, at, level + 1);
      if (below == nullptr) return nullptr;
      made->entries()[slot] = reinterpret_cast<uintptr_t>(below) + 1;
    }
    made->entries()[slots.fanout] = static_cast<uint64_t>(end) << 1;
    return made;
  }

  // Ranks at which the first key that is not less may be, the end included.
  Ranks ranks_of(uint64_t key) const {
    if (root_ == nullptr) return {0, count_};
    const Table *table = root_;
    while (true) {
      const uint32_t slot = table->slots.of(key);
      const uint64_t entry = table->entries()[slot];
      if ((entry & 1) == 0) return {static_cast<int64_t>(entry >> 1), table->begin_of(slot + 1)};
      table = table_of(entry);
    }
  }

  int64_t search(uint64_t key, const Ranks &ranks) const {
    int64_t low = ranks.begin, length = ranks.end - ranks.begin;
    for (; length > 4; length -= length / 2) low += keys_[low + length / 2 - 1] < key ? length / 2 : 0;
    for (const int64_t end = low + length; low < end && keys_[low] < key;) ++low;
    return low;
  }

  Context &context_;
  uint64_t *keys_ = nullptr, *payloads_ = nullptr;
  int64_t count_ = 0, depth_ = 0;
  const Table *root_ = nullptr;
};

}  // namespace lm

#endif
