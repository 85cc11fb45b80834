// The C interface: checks what it is given, holds the lock for a slice of a batch, and passes it to the structure.
#include "index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>

#include "hash.hpp"
#include "lock.hpp"
#include "sorted.hpp"
#include "tree.hpp"

namespace {

constexpr int64_t kSlice = 64;        // operations for which the lock is held
constexpr int64_t kScanSlice = 256;   // pairs that a scan copies meanwhile
constexpr int64_t kMovesPerOperation = 8;

}  // namespace

struct lm_index {
  explicit lm_index(const lm_config &config) : tree(context), sorted(context), hash(context) {
    context.config = config;
    context.pool.set_most_bytes(config.most_bytes);
  }

  mutable lm::PhaseFairLock lock;
  lm::Context context;
  lm::Tree tree;
  lm::SortedArray sorted;
  lm::HashTable hash;
  bool has_last = false;  // of the largest key, which no structure holds
  uint64_t last_payload = 0;
  uint64_t renewed = 0;  // where lm_reconfigure goes on
  bool compacting = false;
  uint64_t compacted = 0;    // where `compact` goes on
  int64_t keys_to_move = 0;  // that it may
  mutable std::atomic<int64_t> lookups{0}, inserts{0}, erases{0}, scans{0};

  int structure() const { return context.config.structure; }
  bool is_tree() const { return structure() == LM_GAPPED || structure() == LM_FLOG; }

  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    if (is_tree()) tree.lookup(keys, count, payloads, found);
    else if (structure() == LM_HASH) hash.lookup(keys, count, payloads, found);
    else sorted.lookup(keys, count, payloads, found);
    for (int64_t i = 0; i < count; ++i) {
      if (keys[i] != lm::kLastKey) continue;
      found[i] = has_last;
      payloads[i] = has_last ? last_payload : 0;
    }
  }

  void reach(const uint64_t *keys, int64_t count, lm::Tree::Place *places) const {
    if (is_tree()) tree.reach(keys, count, true, places);
    else hash.prefetch(keys, count);
  }

  lm::Done insert(uint64_t key, uint64_t payload, bool upsert, const lm::Tree::Place &place, bool *changed) {
    if (key == lm::kLastKey) {
      const lm::Done done = has_last ? lm::Done::kPresent : lm::Done::kNew;
      if (!has_last || upsert) last_payload = payload;
      has_last = true;
      return done;
    }
    return is_tree() ? tree.insert(key, payload, upsert, place, changed) : hash.insert(key, payload, upsert, changed);
  }

  lm::Done erase(uint64_t key, const lm::Tree::Place &place, bool *changed) {
    if (key == lm::kLastKey) {
      const lm::Done done = has_last ? lm::Done::kPresent : lm::Done::kAbsent;
      has_last = false;
      return done;
    }
    return is_tree() ? tree.erase(key, place, changed) : hash.erase(key, changed);
  }

  bool scan(uint64_t *from, uint64_t last, int64_t most, lm::Pairs *to) const {
    return is_tree() ? tree.scan(from, last, most, to) : sorted.scan(from, last, most, to);
  }

  // Calls `apply(i, place, &changed)` for the operations of a batch, in slices that end early where the structure was changed.
  template <typename Apply>
  int in_slices(const uint64_t *keys, int64_t count, int64_t *done, const Apply &apply) {
    *done = 0;
    while (*done < count) {
      const int64_t begin = *done;
      if (!one_slice(keys, begin, std::min(count, begin + kSlice), done, apply)) return context.pool.failure();
      compact(*done - begin);
    }
    return LM_OK;
  }

  template <typename Apply>
  bool one_slice(const uint64_t *keys, int64_t begin, int64_t end, int64_t *done, const Apply &apply) {
    const lm::Writing writing(lock);
    lm::Tree::Place places[lm::kGroup];
    bool changed = false;
    for (int64_t i = begin; i < end && !changed; ++i) {
      const int64_t in_group = (i - begin) % lm::kGroup;
      if (in_group == 0) reach(keys + i, std::min(lm::kGroup, end - i), places);
      if (!apply(i, places[in_group], &changed)) return false;
      *done = i + 1;
    }
    return true;
  }

  // Leaf by leaf, memory that most keys have left is given back: a few keys are moved for each operation.
  void compact(int64_t operations) {
    if (!is_tree()) return;
    if (!compacting) {
      if (!context.pool.is_sparse()) return;
      const lm::Writing writing(lock);
      context.pool.retire();
      compacting = true;
      compacted = 0;
      keys_to_move = 0;
    }
    keys_to_move += kMovesPerOperation * operations;
    while (compacting && keys_to_move > 0) {
      const lm::Writing writing(lock);
      int64_t moved = 0;
      // Without memory a later batch tries again.
      compacting = tree.move_next(&compacted, &moved) && compacted != 0;
      keys_to_move -= moved + 1;
    }
  }
};

namespace {

bool is_share(double value) { return value >= 0 && value <= 1; }
bool is_most(double value) { return value >= 0 && std::isfinite(value); }

bool same_leaves(const lm_config &a, const lm_config &b) {
  return a.structure == b.structure && a.most_searches == b.most_searches && a.most_shifts == b.most_shifts &&
         a.insert_share == b.insert_share && a.fragment_keys == b.fragment_keys &&
         a.most_fragments == b.most_fragments && a.first_fragments == b.first_fragments;
}

}  // namespace

extern "C" {

int lm_check_config(const lm_config *config) {
  bool good = config->structure >= LM_GAPPED && config->structure <= LM_HASH && config->most_bytes >= 0;
  if (config->structure == LM_GAPPED)
    good = good && is_share(config->insert_share) && is_most(config->most_searches) && is_most(config->most_shifts);
  if (config->structure == LM_FLOG)
    good = good && config->fragment_keys >= 4 && config->fragment_keys <= lm::kMostFragmentKeys &&
           config->most_fragments >= 1 && config->most_fragments <= static_cast<int32_t>(lm::kMostFanout) &&
           config->first_fragments >= 1 && config->first_fragments <= config->most_fragments;
  return good ? LM_OK : LM_BAD_CONFIG;
}

int lm_create(const lm_config *config, const uint64_t *keys, const uint64_t *payloads, int64_t count, lm_index **made) {
  *made = nullptr;
  if (lm_check_config(config) != LM_OK) return LM_BAD_CONFIG;
  for (int64_t i = 1; i < count; ++i) {
    if (keys[i] > keys[i - 1]) continue;
    for (int64_t j = i; j < count; ++j)
      if (keys[j] < keys[j - 1]) return LM_UNSORTED;
    return LM_DUPLICATE;
  }
  if (lm::allocation_fails()) return LM_NO_MEMORY;
  lm_index *index = new (std::nothrow) lm_index(*config);
  if (index == nullptr) return LM_NO_MEMORY;
  index->context.keys = count;
  const bool has_last = count > 0 && keys[count - 1] == lm::kLastKey;
  if (has_last) index->last_payload = payloads[--count];
  index->has_last = has_last;
  const bool loaded = index->is_tree()                  ? index->tree.load(keys, payloads, count)
                      : index->structure() == LM_SORTED ? index->sorted.load(keys, payloads, count)
                                                        : index->hash.load(keys, payloads, count);
  if (!loaded) {
    const int failure = index->context.pool.failure();
    delete index;
    return failure;
  }
  *made = index;
  return LM_OK;
}

void lm_destroy(lm_index *index) { delete index; }

int lm_lookup(const lm_index *index, const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) {
  for (int64_t begin = 0; begin < count; begin += kSlice) {
    const lm::Reading reading(index->lock);
    const int64_t end = std::min(count, begin + kSlice);
    for (int64_t i = begin; i < end; i += lm::kGroup)
      index->lookup(keys + i, std::min(lm::kGroup, end - i), payloads + i, found + i);
  }
  index->lookups.fetch_add(count, std::memory_order_relaxed);
  return LM_OK;
}

int lm_insert(lm_index *index, const uint64_t *keys, const uint64_t *payloads, int64_t count, int upsert,
              uint8_t *present, int64_t *done) {
  *done = 0;
  if (index->structure() == LM_SORTED) return LM_READ_ONLY;
  const int status = index->in_slices(keys, count, done, [&](int64_t i, const lm::Tree::Place &place, bool *changed) {
    const lm::Done came = index->insert(keys[i], payloads[i], upsert != 0, place, changed);
    present[i] = came == lm::Done::kPresent;
    index->context.keys += came == lm::Done::kNew;
    return came != lm::Done::kNoMemory;
  });
  index->inserts.fetch_add(*done, std::memory_order_relaxed);
  return status;
}

int lm_erase(lm_index *index, const uint64_t *keys, int64_t count, uint8_t *found, int64_t *done) {
  *done = 0;
  if (index->structure() == LM_SORTED) return LM_READ_ONLY;
  const int status = index->in_slices(keys, count, done, [&](int64_t i, const lm::Tree::Place &place, bool *changed) {
    const lm::Done came = index->erase(keys[i], place, changed);
    found[i] = came == lm::Done::kPresent;
    index->context.keys -= found[i];
    return true;
  });
  index->erases.fetch_add(*done, std::memory_order_relaxed);
  return status;
}

int lm_range(const lm_index *index, uint64_t first, uint64_t last, int64_t most, uint64_t *keys, uint64_t *payloads,
             int64_t *count) {
  *count = 0;
  lm::Pairs pairs{keys, payloads, 0};
  index->scans.fetch_add(1, std::memory_order_relaxed);
  bool more = first <= last;
  while (more || pairs.count < most) {
    const lm::Reading reading(index->lock);
    if (index->structure() == LM_HASH) return LM_NO_ORDER;
    if (more && pairs.count < most) {
      more = index->scan(&first, last, std::min(kScanSlice, most - pairs.count), &pairs);
      continue;
    }
    if (!more && pairs.count < most && last == lm::kLastKey && index->has_last) {
      pairs.keys[pairs.count] = lm::kLastKey;
      pairs.payloads[pairs.count++] = index->last_payload;
    }
    break;
  }
  *count = pairs.count;
  return LM_OK;
}

int lm_dump(const lm_index *index, uint64_t *keys, uint64_t *payloads) {
  int64_t held;
  {
    const lm::Reading reading(index->lock);
    held = index->context.keys;
    if (index->structure() == LM_HASH) {
      if (lm::allocation_fails()) return LM_NO_MEMORY;
      lm::Pair *pairs = new (std::nothrow) lm::Pair[static_cast<size_t>(held + 1)];
      if (pairs == nullptr) return LM_NO_MEMORY;
      int64_t count = index->hash.copy(pairs);
      if (index->has_last) pairs[count++] = {lm::kLastKey, index->last_payload};
      std::sort(pairs, pairs + count, [](const lm::Pair &a, const lm::Pair &b) { return a.key < b.key; });
      for (int64_t i = 0; i < count; ++i) {
        keys[i] = pairs[i].key;
        payloads[i] = pairs[i].payload;
      }
      delete[] pairs;
      return LM_OK;
    }
  }
  int64_t count;
  return lm_range(index, 0, lm::kLastKey, held, keys, payloads, &count);
}

int lm_reconfigure(lm_index *index, const lm_config *config, int64_t most_leaves, int64_t *left) {
  *left = 0;
  if (lm_check_config(config) != LM_OK || !index->is_tree()) return LM_BAD_CONFIG;
  if (config->structure != LM_GAPPED && config->structure != LM_FLOG) return LM_BAD_CONFIG;
  lm::Context &context = index->context;
  lm_config wanted = *config;
  if (wanted.structure == LM_GAPPED) {  // old fragmented logs keep their sizes until they are rebuilt
    wanted.fragment_keys = context.config.fragment_keys;
    wanted.most_fragments = context.config.most_fragments;
    wanted.first_fragments = context.config.first_fragments;
  }
  {
    const lm::Writing writing(index->lock);
    if (wanted.most_bytes > 0 && wanted.most_bytes < context.pool.bytes()) return LM_OVER_LIMIT;
    if (!same_leaves(wanted, context.config)) {
      ++context.generation;
      context.current_leaves = 0;
      index->renewed = 0;
    }
    context.config = wanted;
    context.pool.set_most_bytes(wanted.most_bytes);
  }
  int status = LM_OK;
  for (int64_t i = 0; status == LM_OK; ++i) {
    const lm::Writing writing(index->lock);
    *left = context.leaves_of[LM_GAPPED] + context.leaves_of[LM_FLOG] - context.current_leaves;
    if (*left == 0 || i >= most_leaves) break;
    if (!index->tree.renew_next(&index->renewed)) status = context.pool.failure();
  }
  return status;
}

int lm_facts_of(const lm_index *index, lm_facts *facts) {
  std::memset(facts, 0, sizeof *facts);
  facts->lookups = index->lookups.load(std::memory_order_relaxed);
  facts->inserts = index->inserts.load(std::memory_order_relaxed);
  facts->erases = index->erases.load(std::memory_order_relaxed);
  facts->scans = index->scans.load(std::memory_order_relaxed);
  const lm::Reading reading(index->lock);
  const lm::Context &context = index->context;
  facts->keys = context.keys;
  facts->bytes = context.pool.bytes() + static_cast<int64_t>(sizeof(lm_index));
  facts->fragments = context.fragments;
  facts->depth = index->is_tree() ? index->tree.depth() : index->structure() == LM_SORTED ? index->sorted.depth() : 1;
  facts->structural_changes = context.structural_changes;
  facts->longest_change_ns = context.longest_change_ns;
  facts->largest_change_keys = context.largest_change_keys;
  facts->huge_page_bytes = context.pool.huge_page_bytes();
  for (int i = 0; i < 4; ++i) {
    facts->leaves_of[i] = context.leaves_of[i];
    facts->leaves += context.leaves_of[i];
  }
  return LM_OK;
}

void lm_fail_allocation(int64_t n) { lm::allocations_to_failure.store(n); }
}
