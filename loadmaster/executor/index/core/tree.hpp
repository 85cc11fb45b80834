// The model tree: linear-model nodes over leaves that are gapped arrays or fragmented logs, side by side in one tree.
#ifndef LOADMASTER_INDEX_TREE_HPP
#define LOADMASTER_INDEX_TREE_HPP

#include <algorithm>
#include <cstdint>

#include "change.hpp"

namespace lm {


class Tree {
 public:
  explicit Tree(Context &context) : context_(context) {}
  Tree(const Tree &) = delete;
  Tree &operator=(const Tree &) = delete;

  int64_t depth() const { return depth_; }

  bool load(const uint64_t *keys, const uint64_t *payloads, int64_t count) {
    Builder builder(context_, keys, payloads, count);
    root_ = builder.build(0, count, true, &depth_);
    return root_ != 0;
  }

  // Place of a key, while the structure stays: its leaf, and there the predicted place or the fragment. In a fragment,
  // no digest before `first` is the key's.
  struct Place {
    Child leaf;
    int64_t start, first;
  };

  // Finds the places of the keys of one group. What the searches read is fetched for all of them, step by step; with
  // `writes`, what an insert writes, too.
  void reach(const uint64_t *keys, int64_t count, bool writes, Place *places) const {
    for (int64_t i = 0; i < count; ++i) {
      places[i].leaf = leaf_of(keys[i]);
      const char *header = node_of<char>(places[i].leaf);
      __builtin_prefetch(header);
      __builtin_prefetch(header + 64);
    }
    for (int64_t i = 0; i < count; ++i) {
      Place &place = places[i];
      if (tag_of(place.leaf) == kGappedTag) {
        const Gapped &leaf = *node_of<Gapped>(place.leaf);
        place.start = leaf.line.at(keys[i], leaf.capacity);
        __builtin_prefetch(leaf.keys() + place.start);
        __builtin_prefetch(leaf.payloads() + place.start);
        if (writes) __builtin_prefetch(leaf.bitmap() + place.start / 64);
      } else {
        const Flog &leaf = *node_of<Flog>(place.leaf);
        place.start = leaf.model.of(keys[i]);
        __builtin_prefetch(leaf.fragments() + place.start);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (tag_of(places[i].leaf) == kFlogTag) fragment_at(places[i]).prefetch(writes);
    }
    for (int64_t i = 0; i < count; ++i) {
      Place &place = places[i];
      if (tag_of(place.leaf) != kFlogTag) continue;
      const Fragment &fragment = fragment_at(place);
      place.first = next_digest(fragment.digests, 0, fragment.count, digest_of(keys[i]));
      if (place.first < fragment.count) __builtin_prefetch(fragment.pairs() + place.first);
    }
  }

  // Keys of one group; found[i] and payloads[i] for each.
  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    Place places[kGroup];
    reach(keys, count, false, places);
    for (int64_t i = 0; i < count; ++i) {
      const Place &place = places[i];
      const uint64_t *payload = nullptr;
      if (tag_of(place.leaf) == kGappedTag) {
        const Gapped &leaf = *node_of<Gapped>(place.leaf);
        uint64_t iterations = 0;
        const int64_t at = leaf.upper_bound(keys[i], place.start, &iterations) - 1;
        if (at >= 0 && leaf.keys()[at] == keys[i]) payload = leaf.payloads() + at;
      } else {
        const Fragment &fragment = fragment_at(place);
        const int64_t at = fragment.find(keys[i], place.first);
        if (at >= 0) payload = &fragment.pairs()[at].payload;
      }
      found[i] = payload != nullptr;
      payloads[i] = payload != nullptr ? *payload : 0;
    }
  }

  // `place` is from `reach`, since which nothing was erased and no structure changed. `changed` is set where the structure
  // was changed, whether or not the insert then had memory.
  Done insert(uint64_t key, uint64_t payload, bool upsert, const Place &place, bool *changed) {
    Place now = place;
    while (true) {
      const Done done = tag_of(now.leaf) == kGappedTag ? insert_gapped(now, key, payload, upsert, changed)
                                                       : insert_flog(now, key, payload, upsert, changed);
      if (done != Done::kAbsent) return done;
      reach(&key, 1, true, &now);
    }
  }

  // `place` is from `reach`, since which no structure changed. Without memory what is emptied stays as large as it was.
  Done erase(uint64_t key, const Place &place, bool *changed) {
    if (!(tag_of(place.leaf) == kGappedTag ? erase_gapped(key, place) : erase_flog(key, place))) return Done::kAbsent;
    if (!is_sparse(place.leaf)) return Done::kPresent;
    *changed = Changes(context_, &root_, &depth_).thin(key);
    return Done::kPresent;
  }

  // Copies pairs of one leaf from *from on, ascending, up to the key `last` and the room `most`. *from becomes the next
  // key to ask for; false when there is none.
  bool scan(uint64_t *from, uint64_t last, int64_t most, Pairs *to) const {
    uint64_t end = kLastKey;  // the leaf's last key
    Child child = root_;
    while (tag_of(child) == kModelTag) {
      const ModelNode *node = node_of<ModelNode>(child);
      uint32_t slot = node->slots.of(*from);
      child = node->children()[slot];
      while (slot < node->slots.fanout && node->children()[slot] == child) ++slot;
      if (slot < node->slots.fanout) end = node->slots.lowest_key(slot) - 1;
    }
    const int64_t before = to->count;
    const bool whole = tag_of(child) == kGappedTag ? scan_gapped(*node_of<Gapped>(child), *from, most, to)
                                                   : scan_flog(*node_of<Flog>(child), *from, last, most, to);
    const uint64_t reached = whole ? end : to->keys[to->count - 1];
    while (to->count > before && to->keys[to->count - 1] > last) --to->count;
    *from = reached + 1;
    return reached < last;
  }

  // Rebuilds the first leaf from *cursor on that is of an older configuration; false for want of memory.
  bool renew_next(uint64_t *cursor) {
    while (true) {
      Path path;
      const Child leaf = path.descend(root_, *cursor);
      const uint64_t end = path.last_key();
      const uint32_t built =
          tag_of(leaf) == kGappedTag ? node_of<Gapped>(leaf)->generation : node_of<Flog>(leaf)->generation;
      if (built != context_.generation) {
        const TimedChange timed(context_, keys_of(leaf));
        if (!Changes(context_, &root_, &depth_).rebuild(path, leaf, false)) return false;
        *cursor = end + 1;
        return true;
      }
      *cursor = end + 1;
    }
  }

  // Moves the leaf of *cursor out of retired memory. *cursor becomes the next leaf's first key, 0 behind the last leaf.
  bool move_next(uint64_t *cursor, int64_t *moved) {
    Path path;
    const Child leaf = path.descend(root_, *cursor);
    const uint64_t end = path.last_key();
    *moved = keys_of(leaf);
    if (!Changes(context_, &root_, &depth_).move_out(path, leaf)) return false;
    *cursor = end + 1;
    return true;
  }

 private:
  Child leaf_of(uint64_t key) const {
    Child child = root_;
    while (tag_of(child) == kModelTag) {
      const ModelNode *node = node_of<ModelNode>(child);
      child = node->children()[node->slots.of(key)];
    }
    return child;
  }

  static Fragment &fragment_at(const Place &place) { return node_of<Flog>(place.leaf)->fragments()[place.start]; }

  static bool erase_gapped(uint64_t key, const Place &place) {
    Gapped &leaf = *node_of<Gapped>(place.leaf);
    const int64_t at = leaf.find(key);
    if (at >= 0) leaf.erase(at);
    return at >= 0;
  }

  bool erase_flog(uint64_t key, const Place &place) {
    Fragment &fragment = fragment_at(place);
    const int64_t at = fragment.find(key, 0);
    if (at < 0) return false;
    fragment.erase(at);
    --node_of<Flog>(place.leaf)->keys_held;
    if (fragment.count == 0) {
      context_.pool.give(fragment.digests);
      fragment = Fragment{};
    } else if (fragment.capacity >= 16 && 4 * fragment.count < fragment.capacity) {
      resize_fragment(context_, &fragment, static_cast<uint32_t>(fragment.capacity / 8 * 4));
    }
    return true;
  }

  // Returns whether a leaf holds so few keys that it is to be made smaller or joined to a neighbour.
  bool is_sparse(Child child) const { return wastes_room(context_, child) || wants_neighbour(context_, child); }

  // kAbsent: the structure was changed, and the insert is to be tried again.
  Done insert_gapped(const Place &place, uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    Gapped &leaf = *node_of<Gapped>(place.leaf);
    uint64_t iterations = 0;
    const int64_t at = leaf.upper_bound(key, place.start, &iterations);
    if (at > 0 && leaf.keys()[at - 1] == key) {
      if (upsert) leaf.payloads()[at - 1] = payload;
      return Done::kPresent;
    }
    const Upkeep upkeep = upkeep_before_insert(leaf, context_.config);
    if (upkeep != Upkeep::kNone) {
      const TimedChange timed(context_, leaf.keys_held);
      Path path;
      path.descend(root_, key);
      Changes changes(context_, &root_, &depth_);
      const bool turns = context_.config.structure == LM_FLOG;
      const bool ok = upkeep == Upkeep::kExpand && !turns
                          ? changes.resize(path, place.leaf)
                          : changes.rebuild(path, place.leaf, upkeep == Upkeep::kSplit && !turns);
      if (!ok) return Done::kNoMemory;
      *changed = true;
      return Done::kAbsent;
    }
    leaf.searches += iterations;
    leaf.insert(key, payload, at, place.start);
    return Done::kNew;
  }

  Done insert_flog(const Place &place, uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    Flog &leaf = *node_of<Flog>(place.leaf);
    Fragment &fragment = fragment_at(place);
    const int64_t at = fragment.find(key, place.first);
    if (at >= 0) {
      if (upsert) fragment.pairs()[at].payload = payload;
      return Done::kPresent;
    }
    const uint32_t most = static_cast<uint32_t>(context_.config.fragment_keys);
    if (fragment.count >= fragment.capacity || fragment.count >= most) {
      if (fragment.count < most) {
        const uint32_t wanted = capacity_for(fragment.count + std::max<uint32_t>(fragment.count / 4u, 1), most);
        if (!resize_fragment(context_, &fragment, wanted)) return Done::kNoMemory;
      } else {
        const TimedChange timed(context_, leaf.keys_held);
        Path path;
        path.descend(root_, key);
        Changes changes(context_, &root_, &depth_);
        if (context_.config.structure == LM_FLOG && multiplying_helps(context_.config, leaf, key)) {
          Flog *made = multiply_fragments(context_, leaf);
          if (made == nullptr) return Done::kNoMemory;
          changes.exchange(path, place.leaf, reinterpret_cast<Child>(made) | kFlogTag);
        } else {
          if (!changes.rebuild(path, place.leaf, false)) return Done::kNoMemory;
        }
        *changed = true;
        return Done::kAbsent;
      }
    }
    fragment.append(key, payload);
    ++leaf.keys_held;
    return Done::kNew;
  }

  // Both give whether they came to the leaf's end.
  static bool scan_gapped(const Gapped &leaf, uint64_t from, int64_t most, Pairs *to) {
    uint64_t iterations = 0;
    int64_t at = leaf.upper_bound(from, leaf.line.at(from, leaf.capacity), &iterations);
    if (at > 0 && leaf.keys()[at - 1] == from) --at;
    return leaf.copy(at, most, to) >= leaf.capacity;
  }

  static bool scan_flog(const Flog &leaf, uint64_t from, uint64_t last, int64_t most, Pairs *to) {
    Pair room[kMostFragmentKeys];
    const int64_t end = to->count + most;
    for (uint32_t i = leaf.model.of(from); i < leaf.model.fragments; ++i) {
      const Fragment &fragment = leaf.fragments()[i];
      if (to->count > end - most && (to->count == end || to->keys[to->count - 1] >= last)) return false;
      if (!copy_fragment(fragment, from, end - to->count, room, to)) return false;
    }
    return true;
  }

  Context &context_;
  Child root_ = 0;
  int64_t depth_ = 0;
};

}  // namespace lm

#endif
