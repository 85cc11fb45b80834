// The model tree: linear-model nodes over leaves that are gapped arrays or fragmented logs, side by side in one tree.
#ifndef LOADMASTER_INDEX_TREE_HPP
#define LOADMASTER_INDEX_TREE_HPP

#include <algorithm>
#include <cstdint>

#include "change.hpp"

namespace lm {

constexpr int64_t kGroup = 16;  // keys whose memory is fetched together

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

  // Keys of one group; found[i] and payloads[i] for each. What the searches read is fetched for all of them first.
  void lookup(const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found) const {
    Child leaves[kGroup];
    int64_t starts[kGroup], firsts[kGroup];
    reach(keys, count, leaves, starts);
    for (int64_t i = 0; i < count; ++i) {
      if (tag_of(leaves[i]) != kFlogTag) continue;
      const Fragment &fragment = node_of<Flog>(leaves[i])->fragments()[starts[i]];
      firsts[i] = next_digest(fragment.digests, 0, fragment.count, digest_of(keys[i]));
      __builtin_prefetch(fragment.pairs() + firsts[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t *payload = nullptr;
      if (tag_of(leaves[i]) == kGappedTag) {
        const Gapped &leaf = *node_of<Gapped>(leaves[i]);
        uint64_t iterations = 0;
        const int64_t at = leaf.upper_bound(keys[i], starts[i], &iterations) - 1;
        if (at >= 0 && leaf.keys()[at] == keys[i]) payload = leaf.payloads() + at;
      } else {
        const Fragment &fragment = node_of<Flog>(leaves[i])->fragments()[starts[i]];
        const int64_t at = fragment.find(keys[i], firsts[i]);
        if (at >= 0) payload = &fragment.pairs()[at].payload;
      }
      found[i] = payload != nullptr;
      payloads[i] = payload != nullptr ? *payload : 0;
    }
  }

  // Fetches what an insert or erase of these keys will read.
  void prefetch(const uint64_t *keys, int64_t count) const {
    Child leaves[kGroup];
    int64_t starts[kGroup];
    reach(keys, count, leaves, starts);
    for (int64_t i = 0; i < count; ++i) {
      if (tag_of(leaves[i]) == kGappedTag) {
        __builtin_prefetch(node_of<Gapped>(leaves[i])->bitmap() + starts[i] / 64);
      } else {
        const Fragment &fragment = node_of<Flog>(leaves[i])->fragments()[starts[i]];
        __builtin_prefetch(fragment.pairs() + fragment.count, 1);
      }
    }
  }

  // `changed` is set where the structure was changed, whether or not the insert then had memory.
  Done insert(uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    while (true) {
      const Child leaf = leaf_of(key);
      const Done done = tag_of(leaf) == kGappedTag ? insert_gapped(leaf, key, payload, upsert, changed)
                                                   : insert_flog(leaf, key, payload, upsert, changed);
      if (done != Done::kAbsent) return done;
    }
  }

  Done erase(uint64_t key, bool *changed) {
    const Child child = leaf_of(key);
    if (tag_of(child) == kGappedTag) {
      Gapped &leaf = *node_of<Gapped>(child);
      const int64_t at = leaf.find(key);
      if (at < 0) return Done::kAbsent;
      leaf.erase(at);
      const double density = static_cast<double>(leaf.keys_held) / static_cast<double>(leaf.capacity);
      if (leaf.capacity > 64 && density < kShrinkDensity) {
        const TimedChange timed(context_);
        Path path;
        Changes(context_, &root_, &depth_).resize(path, path.descend(root_, key));  // without memory it stays large
        *changed = true;
      }
      return Done::kPresent;
    }
    Flog &leaf = *node_of<Flog>(child);
    Fragment &fragment = leaf.of(key);
    const int64_t at = fragment.find(key);
    if (at < 0) return Done::kAbsent;
    const int64_t last = --fragment.count;
    fragment.digests[at] = fragment.digests[last];
    fragment.pairs()[at] = fragment.pairs()[last];
    --leaf.keys_held;
    if (last == 0) {
      context_.pool.give(fragment.digests);
      fragment = Fragment{};
    } else if (fragment.capacity >= 16 && 4 * last < fragment.capacity) {
      resize_fragment(context_, &fragment, static_cast<uint32_t>(fragment.capacity / 8 * 4));
    }
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
      uint64_t end = kLastKey;
      for (int level = path.depth - 1; level >= 0 && end == kLastKey; --level) {
        uint32_t begin, after;
        path.run(level, &begin, &after);
        const Slots &slots = path.nodes[level]->slots;
        if (after < slots.fanout) end = slots.lowest_key(after) - 1;
      }
      const uint32_t built =
          tag_of(leaf) == kGappedTag ? node_of<Gapped>(leaf)->generation : node_of<Flog>(leaf)->generation;
      if (built != context_.generation) {
        const TimedChange timed(context_);
        if (!Changes(context_, &root_, &depth_).rebuild(path, leaf, false)) return false;
        *cursor = end + 1;
        return true;
      }
      *cursor = end + 1;
    }
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

  void reach(const uint64_t *keys, int64_t count, Child *leaves, int64_t *starts) const {
    for (int64_t i = 0; i < count; ++i) {
      leaves[i] = leaf_of(keys[i]);
      const char *header = node_of<char>(leaves[i]);
      __builtin_prefetch(header);
      __builtin_prefetch(header + 64);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (tag_of(leaves[i]) == kGappedTag) {
        const Gapped &leaf = *node_of<Gapped>(leaves[i]);
        starts[i] = leaf.line.at(keys[i], leaf.capacity);
        __builtin_prefetch(leaf.keys() + starts[i]);
        __builtin_prefetch(leaf.payloads() + starts[i]);
      } else {
        const Flog &leaf = *node_of<Flog>(leaves[i]);
        starts[i] = leaf.model.of(keys[i]);
        __builtin_prefetch(leaf.fragments() + starts[i]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (tag_of(leaves[i]) != kFlogTag) continue;
      const Fragment &fragment = node_of<Flog>(leaves[i])->fragments()[starts[i]];
      for (int64_t at = 0; at < fragment.count; at += 64) __builtin_prefetch(fragment.digests + at);
    }
  }

  // kAbsent: the structure was changed, and the insert is to be tried again.
  Done insert_gapped(Child child, uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    Gapped &leaf = *node_of<Gapped>(child);
    const int64_t start = leaf.line.at(key, leaf.capacity);
    uint64_t iterations = 0;
    const int64_t at = leaf.upper_bound(key, start, &iterations);
    if (at > 0 && leaf.keys()[at - 1] == key) {
      if (upsert) leaf.payloads()[at - 1] = payload;
      return Done::kPresent;
    }
    const Upkeep upkeep = upkeep_before_insert(leaf, context_.config);
    if (upkeep != Upkeep::kNone) {
      const TimedChange timed(context_);
      Path path;
      path.descend(root_, key);
      Changes changes(context_, &root_, &depth_);
      const bool turns = context_.config.structure == LM_FLOG;
      const bool ok = upkeep == Upkeep::kExpand && !turns
                          ? changes.resize(path, child)
                          : changes.rebuild(path, child, upkeep == Upkeep::kSplit && !turns);
      if (!ok) return Done::kNoMemory;
      *changed = true;
      return Done::kAbsent;
    }
    leaf.searches += iterations;
    leaf.insert(key, payload, at, start);
    return Done::kNew;
  }

  Done insert_flog(Child child, uint64_t key, uint64_t payload, bool upsert, bool *changed) {
    Flog &leaf = *node_of<Flog>(child);
    Fragment &fragment = leaf.of(key);
    const int64_t at = fragment.find(key);
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
        const TimedChange timed(context_);
        Path path;
        path.descend(root_, key);
        Changes changes(context_, &root_, &depth_);
        if (context_.config.structure == LM_FLOG && multiplying_helps(context_.config, leaf, key)) {
          Flog *made = multiply_fragments(context_, leaf);
          if (made == nullptr) return Done::kNoMemory;
          changes.exchange(path, child, reinterpret_cast<Child>(made) | kFlogTag);
        } else {
          if (!changes.rebuild(path, child, false)) return Done::kNoMemory;
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
