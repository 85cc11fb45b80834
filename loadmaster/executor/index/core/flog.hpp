// The fragmented log: fragments of unsorted keys without gaps; a linear model says which fragment holds a key.
// A full fragment grows up to the largest size; then the node's fragments are multiplied, or the node is split.
#ifndef LOADMASTER_INDEX_FLOG_HPP
#define LOADMASTER_INDEX_FLOG_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "model.hpp"
#include "search.hpp"

namespace lm {

struct Fragment {
  uint8_t *digests;  // in whole steps, then the pairs; null while there are none
  uint16_t count, capacity;
  uint32_t unused;

  static size_t digest_bytes(size_t capacity) { return (capacity + kDigestStep - 1) & ~static_cast<size_t>(kDigestStep - 1); }
  static size_t bytes(size_t capacity) { return digest_bytes(capacity) + sizeof(Pair) * capacity; }

  Pair *pairs() { return reinterpret_cast<Pair *>(digests + digest_bytes(capacity)); }
  const Pair *pairs() const { return reinterpret_cast<const Pair *>(digests + digest_bytes(capacity)); }

  void append(uint64_t key, uint64_t payload) {
    digests[count] = digest_of(key);
    pairs()[count++] = {key, payload};
  }

  // The last key takes the place of the one that goes.
  void erase(int64_t at) {
    --count;
    digests[at] = digests[count];
    pairs()[at] = pairs()[count];
  }

  // Fetches the digests and, with `writes`, the place behind the last key.
  void prefetch(bool writes) const {
    for (uintptr_t line = reinterpret_cast<uintptr_t>(digests) & ~uintptr_t{63};
         line < reinterpret_cast<uintptr_t>(digests) + count; line += 64)
      __builtin_prefetch(reinterpret_cast<const void *>(line));
    if (writes && count < capacity) __builtin_prefetch(pairs() + count, 1);
  }

  // The place of the key, from the place `from` on, or -1.
  int64_t find(uint64_t key, int64_t from) const {
    const uint8_t digest = digest_of(key);
    for (int64_t at = next_digest(digests, from, count, digest); at < count;
         at = next_digest(digests, at + 1, count, digest))
      if (pairs()[at].key == key) return at;
    return -1;
  }
};

// Which fragment a key goes to: floor(slope * (key - first)), with the slope in units of 2^-64, exact and monotone.
struct FragmentModel {
  uint64_t first = 0, slope = 0;
  uint32_t fragments = 1;

  uint32_t of(uint64_t key) const {
    if (key <= first) return 0;
    const uint64_t at = static_cast<uint64_t>((static_cast<unsigned __int128>(key - first) * slope) >> 64);
    return at < fragments ? static_cast<uint32_t>(at) : fragments - 1;
  }

  static FragmentModel spread(uint64_t first, uint64_t last, uint32_t fragments) {
    FragmentModel model;
    model.first = first;
    model.fragments = fragments;
    const unsigned __int128 range = static_cast<unsigned __int128>(last - first) + 1;
    const unsigned __int128 slope = (static_cast<unsigned __int128>(fragments) << 64) / range;
    model.slope = slope > kLastKey ? kLastKey : static_cast<uint64_t>(slope);
    return model;
  }
};

struct Flog {
  FragmentModel model;
  uint32_t generation;
  int64_t keys_held;

  Fragment *fragments() { return reinterpret_cast<Fragment *>(this + 1); }
  const Fragment *fragments() const { return reinterpret_cast<const Fragment *>(this + 1); }
  Fragment &of(uint64_t key) { return fragments()[model.of(key)]; }
  const Fragment &of(uint64_t key) const { return fragments()[model.of(key)]; }

  static size_t bytes(uint32_t fragments) { return sizeof(Flog) + sizeof(Fragment) * fragments; }
};

// Fragments grow by half, in steps of four keys.
inline uint32_t capacity_for(uint32_t keys, uint32_t most) {
  const uint32_t roomy = (keys + keys / 4 + 4) & ~uint32_t{3};
  return std::min(std::max<uint32_t>(roomy, 4), (most + 3) & ~uint32_t{3});
}

inline bool allocate_fragment(Context &context, Fragment *fragment, uint32_t capacity) {
  fragment->digests = static_cast<uint8_t *>(context.pool.take(Fragment::bytes(capacity)));
  if (fragment->digests == nullptr) return false;
  fragment->capacity = static_cast<uint16_t>(capacity);
  fragment->count = 0;
  return true;
}

inline bool resize_fragment(Context &context, Fragment *fragment, uint32_t capacity) {
  Fragment larger{};
  if (!allocate_fragment(context, &larger, capacity)) return false;
  larger.count = fragment->count;
  if (fragment->digests != nullptr) {
    std::memcpy(larger.digests, fragment->digests, fragment->count);
    std::memcpy(larger.pairs(), fragment->pairs(), sizeof(Pair) * fragment->count);
    context.pool.give(fragment->digests);
  }
  *fragment = larger;
  return true;
}

inline bool is_retired(const Context &context, const Flog &leaf) {
  if (context.pool.is_retired(&leaf)) return true;
  for (uint32_t i = 0; i < leaf.model.fragments; ++i) {
    const Fragment &fragment = leaf.fragments()[i];
    if (fragment.digests != nullptr && context.pool.is_retired(fragment.digests)) return true;
  }
  return false;
}

inline void free_flog(Context &context, Flog *leaf) {
  for (uint32_t i = 0; i < leaf->model.fragments; ++i) context.pool.give(leaf->fragments()[i].digests);
  context.count_leaf(LM_FLOG, leaf->generation, -1);
  context.fragments -= leaf->model.fragments;
  context.pool.give(leaf);
}

// A node with empty fragments, or null.
inline Flog *make_empty_flog(Context &context, const FragmentModel &model) {
  Flog *made = static_cast<Flog *>(context.pool.take(Flog::bytes(model.fragments)));
  if (made == nullptr) return nullptr;
  made->model = model;
  made->generation = context.generation;
  made->keys_held = 0;
  std::memset(static_cast<void *>(made->fragments()), 0, sizeof(Fragment) * model.fragments);
  context.count_leaf(LM_FLOG, made->generation, 1);
  context.fragments += model.fragments;
  return made;
}

// Spread of keys over fragments.
struct Spread {
  int64_t most = 0;      // keys of one fragment
  double squares = 0;    // of the counts, summed
};

inline Spread spread_of(const FragmentModel &model, const uint64_t *keys, int64_t count) {
  Spread spread;
  int64_t run = 0;
  uint32_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t at = model.of(keys[i]);
    if (at != last) {
      spread.most = std::max(spread.most, run);
      spread.squares += static_cast<double>(run) * static_cast<double>(run);
      run = 0;
      last = at;
    }
    ++run;
  }
  spread.most = std::max(spread.most, run);
  spread.squares += static_cast<double>(run) * static_cast<double>(run);
  return spread;
}

// The most keys of a fragment of a new node: it has room for some more before the node changes again.
inline int64_t most_at_first(const lm_config &config) { return config.fragment_keys * 3 / 4; }

// The model of a node for these sorted keys: fragments half full on average, more of them where keys crowd. False where
// no number of fragments that is allowed and not wasteful separates them.
inline bool flog_model(const lm_config &config, const uint64_t *keys, int64_t count, FragmentModel *model,
                       Spread *spread) {
  const int64_t most = most_at_first(config);
  const int64_t ideal = std::max<int64_t>(1, (2 * count + config.fragment_keys - 1) / config.fragment_keys);
  const uint64_t first = count > 0 ? keys[0] : 0, last = count > 0 ? keys[count - 1] : kLastKey;
  int64_t fragments = count <= most ? 1 : ideal;
  for (; fragments <= config.most_fragments && fragments <= 4 * ideal; fragments *= 2) {
    *model = FragmentModel::spread(first, last, static_cast<uint32_t>(fragments));
    *spread = spread_of(*model, keys, count);
    if (spread->most <= most) return true;
  }
  return false;
}

// A node of sorted keys whose model puts no more than the largest number of keys in one fragment, or null.
inline Flog *make_flog(Context &context, const FragmentModel &model, const uint64_t *keys, const uint64_t *payloads,
                       int64_t count) {
  Flog *made = make_empty_flog(context, model);
  if (made == nullptr) return nullptr;
  made->keys_held = count;
  for (int64_t i = 0; i < count;) {
    const uint32_t at = model.of(keys[i]);
    int64_t end = i + 1;
    while (end < count && model.of(keys[end]) == at) ++end;
    const size_t length = static_cast<size_t>(end - i);
    Fragment &fragment = made->fragments()[at];
    const uint32_t most = static_cast<uint32_t>(context.config.fragment_keys);
    if (!allocate_fragment(context, &fragment, capacity_for(static_cast<uint32_t>(length), most))) {
      free_flog(context, made);
      return nullptr;
    }
    for (; i < end; ++i) fragment.append(keys[i], payloads[i]);
  }
  return made;
}

// Returns whether twice the fragments would leave room for another key like this one.
inline bool multiplying_helps(const lm_config &config, const Flog &leaf, uint64_t key) {
  const int64_t most = config.fragment_keys;
  FragmentModel model = leaf.model;
  if (2 * static_cast<int64_t>(model.fragments) > config.most_fragments || model.slope > kLastKey / 2) return false;
  if (4 * leaf.keys_held < static_cast<int64_t>(model.fragments) * most) return false;  // keys crowd elsewhere
  model.slope *= 2;
  model.fragments *= 2;
  const Fragment &full = leaf.of(key);
  const uint32_t half = model.of(key);
  int64_t same = 0;
  for (uint32_t i = 0; i < full.count; ++i) same += model.of(full.pairs()[i].key) == half;
  return same < most && full.count - same <= most;
}

// A node with twice the fragments and the same keys, or null.
inline Flog *multiply_fragments(Context &context, const Flog &leaf) {
  FragmentModel model = leaf.model;
  model.slope *= 2;
  model.fragments *= 2;
  Flog *made = make_empty_flog(context, model);
  if (made == nullptr) return nullptr;
  // Keys of a fragment that was made under a larger limit stay together until it takes another key.
  for (uint32_t i = 0; i < leaf.model.fragments; ++i) {
    const Fragment &old = leaf.fragments()[i];
    uint32_t right = 0;
    for (uint32_t j = 0; j < old.count; ++j) right += model.of(old.pairs()[j].key) > 2 * i;
    Fragment *halves = made->fragments() + 2 * i;
    const uint32_t counts[2] = {old.count - right, right};
    for (int half = 0; half < 2; ++half) {
      const uint32_t most = std::max(counts[half], static_cast<uint32_t>(context.config.fragment_keys));
      if (counts[half] > 0 && !allocate_fragment(context, halves + half, capacity_for(counts[half], most))) {
        free_flog(context, made);
        return nullptr;
      }
    }
    for (uint32_t j = 0; j < old.count; ++j) {
      const Pair &pair = old.pairs()[j];
      halves[model.of(pair.key) > 2 * i].append(pair.key, pair.payload);
    }
  }
  made->keys_held = leaf.keys_held;
  return made;
}

// Appends up to `most` pairs of a fragment from the key `from` on, sorted; whether those were all.
// `room` is for as many pairs as a fragment holds.
inline bool copy_fragment(const Fragment &fragment, uint64_t from, int64_t most, Pair *room, Pairs *to) {
  int64_t count = 0;
  for (uint32_t i = 0; i < fragment.count; ++i)
    if (fragment.pairs()[i].key >= from) room[count++] = fragment.pairs()[i];
  std::sort(room, room + count, [](const Pair &a, const Pair &b) { return a.key < b.key; });
  for (int64_t i = 0; i < count && i < most; ++i) {
    to->keys[to->count] = room[i].key;
    to->payloads[to->count++] = room[i].payload;
  }
  return count <= most;
}

}  // namespace lm

#endif
