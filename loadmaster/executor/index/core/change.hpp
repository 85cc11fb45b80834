// Structural changes of the model tree: a leaf is rebuilt, split sideways in its parent or downwards under a new node.
// Everything new is made before anything old is touched, so that a change that finds no memory changes nothing.
#ifndef LOADMASTER_INDEX_CHANGE_HPP
#define LOADMASTER_INDEX_CHANGE_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "build.hpp"

namespace lm {

// Each level at least halves the keys' range that a slot has, or is one of the few beyond an end of its parent.
constexpr int kMostDepth = 128;
constexpr int64_t kMostFragmentKeys = 4096;

// The model nodes above a leaf, and which slots they took.
struct Path {
  ModelNode *nodes[kMostDepth];
  uint32_t slots[kMostDepth];
  int depth = 0;

  Child descend(Child root, uint64_t key) {
    Child child = root;
    depth = 0;
    while (tag_of(child) == kModelTag) {
      ModelNode *node = node_of<ModelNode>(child);
      const uint32_t slot = node->slots.of(key);
      nodes[depth] = node;
      slots[depth++] = slot;
      child = node->children()[slot];
    }
    return child;
  }

  // The slots of level `level` that have the same child as the one taken.
  void run(int level, uint32_t *begin, uint32_t *end) const {
    const ModelNode *node = nodes[level];
    const Child child = node->children()[slots[level]];
    *begin = slots[level];
    *end = *begin + 1;
    while (*begin > 0 && node->children()[*begin - 1] == child) --*begin;
    while (*end < node->slots.fanout && node->children()[*end] == child) ++*end;
  }

  // The last key that belongs to the leaf.
  uint64_t last_key() const {
    for (int level = depth - 1; level >= 0; --level) {
      uint32_t begin, end;
      run(level, &begin, &end);
      if (end < nodes[level]->slots.fanout) return nodes[level]->slots.lowest_key(end) - 1;
    }
    return kLastKey;
  }

  // Puts `child` where the path goes on below level `level - 1`.
  void replace(Child *root, int level, Child child) const {
    if (level == 0) {
      *root = child;
      return;
    }
    uint32_t begin, end;
    run(level - 1, &begin, &end);
    std::fill(nodes[level - 1]->children() + begin, nodes[level - 1]->children() + end, child);
  }
};

inline int64_t keys_of(Child leaf) {
  return tag_of(leaf) == kGappedTag ? node_of<Gapped>(leaf)->keys_held : node_of<Flog>(leaf)->keys_held;
}

// A leaf that has much more room than keys, and would not have it if it were built again.
inline bool wastes_room(const Context &context, Child leaf) {
  if (tag_of(leaf) == kGappedTag) {
    const Gapped &gapped = *node_of<Gapped>(leaf);
    return gapped.capacity > 64 &&
           static_cast<double>(gapped.keys_held) < kShrinkDensity * static_cast<double>(gapped.capacity);
  }
  const Flog &flog = *node_of<Flog>(leaf);
  return flog.model.fragments > 1 && 16 * flog.keys_held < flog.model.fragments * int64_t{context.config.fragment_keys};
}

inline bool wants_neighbour(const Context &context, Child leaf) { return keys_of(leaf) <= few_keys(context) / 4; }

// The pairs of one leaf, or of two that follow each other, sorted, in memory of the pool for as long as this lives.
class LeafPairs {
 public:
  explicit LeafPairs(Context &context, Child leaf, Child after = 0) : context_(context) {
    const size_t held = static_cast<size_t>(keys_of(leaf) + (after == 0 ? 0 : keys_of(after)));
    pairs_.keys = context.pool.take_array<uint64_t>(2 * held);
    if (pairs_.keys == nullptr) return;
    pairs_.payloads = pairs_.keys + held;
    append(leaf);
    if (after != 0) append(after);
  }
  LeafPairs(const LeafPairs &) = delete;
  LeafPairs &operator=(const LeafPairs &) = delete;
  ~LeafPairs() { context_.pool.give(pairs_.keys); }

  bool ok() const { return pairs_.keys != nullptr; }
  const uint64_t *keys() const { return pairs_.keys; }
  const uint64_t *payloads() const { return pairs_.payloads; }
  int64_t count() const { return pairs_.count; }

 private:
  void append(Child leaf) {
    if (tag_of(leaf) == kGappedTag) {
      node_of<Gapped>(leaf)->copy(0, keys_of(leaf), &pairs_);
      return;
    }
    Pair room[kMostFragmentKeys];
    const Flog *flog = node_of<Flog>(leaf);
    for (uint32_t i = 0; i < flog->model.fragments; ++i)
      copy_fragment(flog->fragments()[i], 0, kMostFragmentKeys, room, &pairs_);
  }

  Context &context_;
  Pairs pairs_;
};

class Changes {
 public:
  Changes(Context &context, Child *root, int64_t *depth) : context_(context), root_(root), depth_(depth) {}

  // Puts another node of the same keys in a leaf's place.
  void exchange(const Path &path, Child leaf, Child made) {
    path.replace(root_, path.depth, made);
    free_subtree(context_, leaf);
  }

  // A gapped array of the same keys and the model scaled; false for want of memory.
  bool resize(const Path &path, Child leaf) {
    const Gapped *old = node_of<Gapped>(leaf);
    LeafPairs pairs(context_, leaf);
    if (!pairs.ok()) return false;
    const Gapped *scaled = old->keys_held < 50 ? nullptr : old;
    const Gapped *made = make_gapped(context_, pairs.keys(), pairs.payloads(), pairs.count(),
                                     places_for(old->keys_held, kLeastDensity), scaled);
    if (made == nullptr) return false;
    exchange(path, leaf, reinterpret_cast<Child>(made) | kGappedTag);
    return true;
  }

  // New leaves for the keys of one: as many as cost least, at least two with `must_split`. False for want of memory.
  bool rebuild(const Path &path, Child leaf, bool must_split) {
    LeafPairs pairs(context_, leaf);
    if (!pairs.ok()) return false;
    Builder builder(context_, pairs.keys(), pairs.payloads(), context_.keys);
    const int64_t held = pairs.count();
    if (path.depth > 0 && held > 0) {
      const Outcome outcome = split_sideways(path, leaf, pairs, builder, must_split);
      if (outcome != Outcome::kTogether) return outcome == Outcome::kDone;
    }
    int64_t height = 0;
    const Child made = builder.build(0, held, !must_split, &height);
    if (made == 0) return false;
    exchange(path, leaf, made);
    *depth_ = std::max<int64_t>(*depth_, path.depth + height);
    return true;
  }

  // After erases: a sparse leaf gets the room that its keys need, an almost empty one is joined to a neighbour, and a
  // model node with a single child gives its place to it. Whether anything changed.
  bool thin(uint64_t key) {
    Path path;
    Child leaf = path.descend(*root_, key);
    bool changed = false;
    if (wastes_room(context_, leaf)) {
      const TimedChange timed(context_, keys_of(leaf));
      changed = tag_of(leaf) == kGappedTag && context_.config.structure == LM_GAPPED ? resize(path, leaf)
                                                                                     : rebuild(path, leaf, false);
      if (!changed) return false;
    }
    for (leaf = path.descend(*root_, key); path.depth > 0; leaf = path.descend(*root_, key), changed = true) {
      if (path.nodes[path.depth - 1]->distinct == 1) raise_only_child(path, leaf);
      else if (!wants_neighbour(context_, leaf) || !join(path, leaf)) break;
    }
    return changed;
  }

  // Builds again what is in retired memory: the leaf and the model nodes above it. False for want of memory.
  bool move_out(Path path, Child leaf) {
    for (int level = 0; level < path.depth; ++level) {
      ModelNode *node = path.nodes[level];
      if (!context_.pool.is_retired(node)) continue;
      ModelNode *made = make_model_node(context_, node->slots);
      if (made == nullptr) return false;
      made->distinct = node->distinct;
      std::copy(node->children(), node->children() + node->slots.fanout, made->children());
      path.replace(root_, level, reinterpret_cast<Child>(made));
      path.nodes[level] = made;
      context_.pool.give(node);
    }
    const bool retired = tag_of(leaf) == kGappedTag ? context_.pool.is_retired(node_of<Gapped>(leaf))
                                                    : is_retired(context_, *node_of<Flog>(leaf));
    if (!retired) return true;
    const TimedChange timed(context_, keys_of(leaf));
    return rebuild(path, leaf, false);
  }

 private:
  enum class Outcome { kDone, kNoMemory, kTogether };

  void raise_only_child(const Path &path, Child child) {
    ModelNode *parent = path.nodes[path.depth - 1];
    path.replace(root_, path.depth - 1, child);
    context_.pool.give(parent);
    if (path.depth == 1) *depth_ = 1;
  }

  // An empty leaf leaves its slots to a neighbour, one with keys becomes one leaf with a neighbour if they are few.
  bool join(const Path &path, Child leaf) {
    ModelNode *parent = path.nodes[path.depth - 1];
    uint32_t begin, end;
    path.run(path.depth - 1, &begin, &end);
    const Child before = begin > 0 ? parent->children()[begin - 1] : 0;
    const Child after = end < parent->slots.fanout ? parent->children()[end] : 0;
    if (keys_of(leaf) == 0) {
      const TimedChange timed(context_, 0);
      std::fill(parent->children() + begin, parent->children() + end, before != 0 ? before : after);
      --parent->distinct;
      free_subtree(context_, leaf);
      return true;
    }
    uint32_t first = begin, last = end;
    while (first > 0 && parent->children()[first - 1] == before) --first;
    while (last < parent->slots.fanout && parent->children()[last] == after) ++last;
    return join_two(parent, before, leaf, first, end) || join_two(parent, leaf, after, begin, last);
  }

  // One leaf for the two that have the slots begin .. end - 1.
  bool join_two(ModelNode *parent, Child left, Child right, uint32_t begin, uint32_t end) {
    if (left == 0 || right == 0 || tag_of(left) == kModelTag || tag_of(right) == kModelTag) return false;
    const int64_t held = keys_of(left) + keys_of(right);
    if (held > few_keys(context_)) return false;
    const TimedChange timed(context_, held);
    const LeafPairs pairs(context_, left, right);
    if (!pairs.ok()) return false;
    int64_t height = 0;
    const Child made = Builder(context_, pairs.keys(), pairs.payloads(), context_.keys).build(0, held, true, &height);
    if (made == 0) return false;
    std::fill(parent->children() + begin, parent->children() + end, made);
    --parent->distinct;
    free_subtree(context_, left);
    free_subtree(context_, right);
    return true;
  }

  // The parent's slots, extended over keys that lie outside of them, where that is not wasteful.
  Slots extended(const ModelNode &parent, bool leftmost, bool rightmost, uint64_t first, uint64_t last) const {
    Slots slots = parent.slots;
    const uint64_t most = most_fanout(parent);
    if (rightmost && last > slots.first && ((last - slots.first) >> slots.shift) >= slots.fanout) {
      const uint64_t needed = ((last - slots.first) >> slots.shift) + 1;
      const uint64_t to_the_end = ((kLastKey - slots.first) >> slots.shift) + 1;  // 0 only if it is all keys by ones
      if (needed <= most) {
        uint64_t roomy = std::min(std::max(needed, static_cast<uint64_t>(slots.fanout) * 3 / 2), most);
        if (to_the_end != 0) roomy = std::min(roomy, to_the_end);
        slots.fanout = static_cast<uint32_t>(roomy);
      }
    }
    if (leftmost && first < slots.first) {
      const uint64_t needed = (slots.first >> slots.shift) - (first >> slots.shift);
      if (needed <= most && needed + slots.fanout <= most) {
        const uint64_t wanted = std::min<uint64_t>(std::max<uint64_t>(needed, slots.fanout / 2), most - slots.fanout);
        const uint64_t added = std::min(wanted, slots.first >> slots.shift);
        slots.first -= added << slots.shift;
        slots.fanout += static_cast<uint32_t>(added);
      }
    }
    return slots;
  }

  static uint64_t most_fanout(const ModelNode &parent) {
    return std::min<uint64_t>(kMostFanout, 64 * (static_cast<uint64_t>(parent.distinct) + 1));
  }

  // Splits among the leaf's own slots of the parent, whose pointers are doubled as often as that takes.
  Outcome split_sideways(const Path &path, Child leaf, const LeafPairs &pairs, Builder &builder, bool must_split) {
    const ModelNode &parent = *path.nodes[path.depth - 1];
    const int64_t held = pairs.count();
    uint32_t begin, end;
    path.run(path.depth - 1, &begin, &end);
    Slots slots = extended(parent, begin == 0, end == parent.slots.fanout, pairs.keys()[0], pairs.keys()[held - 1]);
    const uint32_t added_left =
        static_cast<uint32_t>((parent.slots.first - slots.first) >> slots.shift);
    const uint32_t added = slots.fanout - parent.slots.fanout;
    end += added;
    uint32_t doublings = 0;
    const int64_t wanted = builder.pieces_wanted(held);
    while (slots.shift > 0 && static_cast<int64_t>(end - begin) < wanted &&
           2 * static_cast<uint64_t>(slots.fanout) <= most_fanout(parent)) {
      --slots.shift;
      slots.fanout *= 2;
      begin *= 2;
      end *= 2;
      ++doublings;
    }
    Piece *pieces = context_.pool.take_array<Piece>(end - begin);
    if (pieces == nullptr) return Outcome::kNoMemory;
    int64_t count = 0;
    builder.plan(slots, begin, end, 0, held, !must_split, pieces, &count);
    Outcome outcome = Outcome::kTogether;
    if (count > 1) {
      uint32_t cuts = 0;
      for (int64_t i = 1; i < count; ++i) cuts |= pieces[i].begin;
      for (; doublings > 0 && (cuts & 1) == 0; --doublings) {
        cuts >>= 1;
        ++slots.shift;
        slots.fanout /= 2;
        begin /= 2;
        end /= 2;
        for (int64_t i = 0; i < count; ++i) {
          pieces[i].begin /= 2;
          pieces[i].end /= 2;
        }
      }
      const bool same = added == 0 && doublings == 0;
      outcome = same ? split_in_place(path, leaf, builder, pieces, count, begin, end)
                     : split_in_larger(path, leaf, builder, pieces, count, slots, doublings, added_left);
    }
    context_.pool.give(pieces);
    return outcome;
  }

  Outcome split_in_place(const Path &path, Child leaf, Builder &builder, const Piece *pieces, int64_t count,
                         uint32_t begin, uint32_t end) {
    Child *children = context_.pool.take_array<Child>(end - begin);
    if (children == nullptr) return Outcome::kNoMemory;
    int64_t height = 0;
    const bool filled = builder.fill(pieces, count, begin, children, &height);
    if (filled) {
      ModelNode *parent = path.nodes[path.depth - 1];
      std::copy(children, children + (end - begin), parent->children() + begin);
      parent->distinct += static_cast<uint32_t>(count) - 1;
      free_subtree(context_, leaf);
      *depth_ = std::max<int64_t>(*depth_, path.depth + height);
    }
    context_.pool.give(children);
    return filled ? Outcome::kDone : Outcome::kNoMemory;
  }

  Outcome split_in_larger(const Path &path, Child leaf, Builder &builder, const Piece *pieces, int64_t count,
                          const Slots &slots, uint32_t doublings, uint32_t added_left) {
    ModelNode *parent = path.nodes[path.depth - 1];
    ModelNode *larger = make_model_node(context_, slots);
    if (larger == nullptr) return Outcome::kNoMemory;
    int64_t height = 0;
    if (!builder.fill(pieces, count, 0, larger->children(), &height)) {
      context_.pool.give(larger);
      return Outcome::kNoMemory;
    }
    for (uint32_t i = 0; i < parent->slots.fanout; ++i) {
      if (parent->children()[i] == leaf) continue;
      Child *to = larger->children() + (static_cast<uint64_t>(i + added_left) << doublings);
      std::fill(to, to + (uint32_t{1} << doublings), parent->children()[i]);
    }
    larger->distinct = parent->distinct + static_cast<uint32_t>(count) - 1;
    path.replace(root_, path.depth - 1, reinterpret_cast<Child>(larger));
    context_.pool.give(parent);
    free_subtree(context_, leaf);
    *depth_ = std::max<int64_t>(*depth_, path.depth + height);
    return Outcome::kDone;
  }

  Context &context_;
  Child *root_;
  int64_t *depth_;
};

}  // namespace lm

#endif
