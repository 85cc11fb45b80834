// The hash table where no order is asked for: linear probing, pairs side by side, at most seven tenths full; deletion
// shifts back what follows, so that there are no marks of deleted keys. The largest key, kept elsewhere, marks what is free.
#ifndef LOADMASTER_INDEX_HASH_HPP
#define LOADMASTER_INDEX_HASH_HPP

#include <algorithm>
#include <cstdint>

#include "model.hpp"

namespace lm {

class HashTable {
 public:
  explicit HashTable(Context &context) : context_(context) {}
  HashTable(const HashTable &) = delete;
  HashTable &operator=(const HashTable &) = delete;

  bool load(const uint64_t *keys, const uint64_t *payloads, int64_t count) {
    if (!resize(roomy(count))) return false;
    for (int64_t i = 0; i < count; ++i) put(keys[i], payloads[i]);
    count_ = count;
    context_.count_leaf(LM_HASH, context_.generation, 1);
    return true;
  }

  void prefetch(const uint64_t *keys, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) __builtin_prefetch(pairs_ + home(keys[i]));
  }

  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    uint64_t homes[kGroup];
    for (int64_t i = 0; i < count; ++i) {
      homes[i] = home(keys[i]);
      __builtin_prefetch(pairs_ + homes[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      uint64_t at = homes[i];
      while (pairs_[at].key != keys[i] && pairs_[at].key != kLastKey) at = next(at);
      found[i] = pairs_[at].key == keys[i];
      payloads[i] = found[i] != 0 ? pairs_[at].payload : 0;
    }
  }

  Done insert(uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    uint64_t at = probe(key);
    if (pairs_[at].key == key) {
      if (upsert) pairs_[at].payload = payload;
      return Done::kPresent;
    }
    if (10 * (count_ + 1) > 7 * static_cast<int64_t>(capacity_)) {
      const TimedChange timed(context_, count_);
      if (!resize(roomy(count_ + count_ / 2 + 1))) return Done::kNoMemory;
      *changed = true;
      at = probe(key);
    }
    pairs_[at] = {key, payload};
    ++count_;
    return Done::kNew;
  }

  Done erase(uint64_t key, bool *changed) {
    uint64_t hole = probe(key);
    if (pairs_[hole].key != key) return Done::kAbsent;
    for (uint64_t at = next(hole); pairs_[at].key != kLastKey; at = next(at)) {
      // A pair moves back unless its home is behind the hole.
      const uint64_t from_home = distance(home(pairs_[at].key), at);
      if (from_home < distance(hole, at)) continue;
      pairs_[hole] = pairs_[at];
      hole = at;
    }
    pairs_[hole].key = kLastKey;
    --count_;
    if (capacity_ > 64 && 6 * count_ < static_cast<int64_t>(capacity_)) {
      const TimedChange timed(context_, count_);
      resize(roomy(count_ + count_ / 2));  // without memory it stays large
      *changed = true;
    }
    return Done::kPresent;
  }

  // All pairs in no order.
  int64_t copy(Pair *to) const {
    int64_t count = 0;
    for (uint64_t at = 0; at < capacity_; ++at)
      if (pairs_[at].key != kLastKey) to[count++] = pairs_[at];
    return count;
  }

 private:
  static uint64_t roomy(int64_t count) { return static_cast<uint64_t>(count) * 10 / 7 + 16; }

  uint64_t home(uint64_t key) const {
    uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93u;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(mixed) * capacity_) >> 64);
  }
  uint64_t next(uint64_t at) const { return at + 1 == capacity_ ? 0 : at + 1; }
  uint64_t distance(uint64_t from, uint64_t to) const { return to >= from ? to - from : to + capacity_ - from; }

  uint64_t probe(uint64_t key) const {
    uint64_t at = home(key);
    while (pairs_[at].key != key && pairs_[at].key != kLastKey) at = next(at);
    return at;
  }
  void put(uint64_t key, uint64_t payload) { pairs_[probe(key)] = {key, payload}; }

  bool resize(uint64_t capacity) {
    Pair *made = context_.pool.take_array<Pair>(capacity);
    if (made == nullptr) return false;
    std::fill(made, made + capacity, Pair{kLastKey, 0});
    Pair *old = pairs_;
    const uint64_t old_capacity = capacity_;
    pairs_ = made;
    capacity_ = capacity;
    for (uint64_t at = 0; at < old_capacity; ++at)
      if (old[at].key != kLastKey) put(old[at].key, old[at].payload);
    context_.pool.give(old);
    return true;
  }

  Context &context_;
  Pair *pairs_ = nullptr;
  uint64_t capacity_ = 0;
  int64_t count_ = 0;
};

}  // namespace lm

#endif
