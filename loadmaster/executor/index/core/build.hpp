// Building subtrees from sorted keys: which slots of a model node share a leaf, and which need a node of their own.
// Slots are merged in halves, from single ones up, wherever one leaf costs less than the parts (ALEX's fanout tree).
#ifndef LOADMASTER_INDEX_BUILD_HPP
#define LOADMASTER_INDEX_BUILD_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "flog.hpp"
#include "gapped.hpp"
#include "model.hpp"

namespace lm {

constexpr uint32_t kMostFanout = uint32_t{1} << 20;
constexpr int64_t kKeysPerSlot = 256;     // of a new model node over gapped arrays
constexpr int64_t kFewGapped = 64;        // keys that are one gapped array without a look at what it costs
constexpr double kBytesWeight = 5e-7;     // ALEX: what a byte of the tree costs every operation
constexpr double kLeafBytes = 256;        // a leaf's header, pointer and rounding
constexpr double kScanWeight = 0.5;       // a key that a scan of a fragment compares

inline void free_subtree(Context &context, Child child) {
  if (child == 0) return;
  if (tag_of(child) == kGappedTag) return free_gapped(context, node_of<Gapped>(child));
  if (tag_of(child) == kFlogTag) return free_flog(context, node_of<Flog>(child));
  ModelNode *node = node_of<ModelNode>(child);
  Child last = 0;
  for (uint32_t i = 0; i < node->slots.fanout; ++i) {
    if (node->children()[i] == last) continue;
    last = node->children()[i];
    free_subtree(context, last);
  }
  context.pool.give(node);
}

// So few keys are always one leaf.
inline int64_t few_keys(const Context &context) {
  return context.config.structure == LM_GAPPED ? kFewGapped : std::max<int64_t>(1, context.config.fragment_keys / 2);
}

inline ModelNode *make_model_node(Context &context, const Slots &slots) {
  ModelNode *made = static_cast<ModelNode *>(context.pool.take(ModelNode::bytes(slots.fanout)));
  if (made == nullptr) return nullptr;
  made->slots = slots;
  made->distinct = 0;
  return made;
}

inline uint32_t count_distinct(const Child *children, uint32_t fanout) {
  uint32_t distinct = 0;
  for (uint32_t i = 0; i < fanout; ++i) distinct += i == 0 || children[i] != children[i - 1];
  return distinct;
}

// Neighbouring slots that get one child for keys low .. high - 1.
struct Piece {
  uint32_t begin, end;
  int64_t low, high;
  bool subtree;
};

class Builder {
 public:
  Builder(Context &context, const uint64_t *keys, const uint64_t *payloads, int64_t total)
      : context_(context), keys_(keys), payloads_(payloads),
        leaf_cost_(kBytesWeight * kLeafBytes * static_cast<double>(std::max<int64_t>(total, 1))) {}

  // A subtree of the keys low .. high - 1, or 0 for want of memory. `height` grows to the levels it has.
  Child build(int64_t low, int64_t high, bool may_be_leaf, int64_t *height) {
    if (may_be_leaf && is_best_as_leaf(low, high)) return make_leaf(low, high, height);
    const Slots slots = slots_for(low, high);
    ModelNode *node = make_model_node(context_, slots);
    if (node == nullptr) return 0;
    int64_t below = 0;
    Piece *pieces = context_.pool.take_array<Piece>(slots.fanout);
    bool made = pieces != nullptr;
    if (made) {
      int64_t count = 0;
      plan(slots, 0, slots.fanout, low, high, false, pieces, &count);
      made = fill(pieces, count, 0, node->children(), &below);
      context_.pool.give(pieces);
    }
    if (!made) {
      context_.pool.give(node);
      return 0;
    }
    node->distinct = count_distinct(node->children(), slots.fanout);
    *height = std::max(*height, below + 1);
    return reinterpret_cast<Child>(node);
  }

  // The pieces of slots begin .. end - 1, which hold the keys low .. high - 1; what they cost, in ALEX's units times keys.
  double plan(const Slots &slots, uint32_t begin, uint32_t end, int64_t low, int64_t high, bool may_merge, Piece *pieces,
              int64_t *count) {
    const int64_t held = high - low;
    if (may_merge && held <= few()) {
      pieces[(*count)++] = {begin, end, low, high, false};
      return leaf_cost_ + static_cast<double>(held) * 10;
    }
    const double as_leaf = leaf_cost(low, high);
    if (end - begin == 1) {
      const bool subtree = as_leaf < 0 || wants_subtree(as_leaf - leaf_cost_, held);
      pieces[(*count)++] = {begin, end, low, high, subtree};
      return as_leaf < 0 ? leaf_cost_ + static_cast<double>(held) * 2 * kNodeWeight : as_leaf;
    }
    if (may_merge && gapped() && is_cheap(as_leaf, held)) {
      pieces[(*count)++] = {begin, end, low, high, false};
      return as_leaf;
    }
    const uint32_t middle = begin + (end - begin) / 2;
    const int64_t split = std::lower_bound(keys_ + low, keys_ + high, slots.lowest_key(middle)) - keys_;
    const int64_t before = *count;
    double apart;
    if (split == high) {
      apart = plan(slots, begin, middle, low, high, may_merge, pieces, count);
      pieces[*count - 1].end = end;
    } else if (split == low) {
      apart = plan(slots, middle, end, low, high, may_merge, pieces, count);
      pieces[before].begin = begin;
    } else {
      apart = plan(slots, begin, middle, low, split, true, pieces, count);
      apart += plan(slots, middle, end, split, high, true, pieces, count);
    }
    if (!may_merge || as_leaf < 0 || as_leaf > apart) return apart;
    *count = before;
    pieces[(*count)++] = {begin, end, low, high, false};
    return as_leaf;
  }

  // Makes the children; children[0] is that of slot `first`. On failure what was made is freed.
  bool fill(const Piece *pieces, int64_t count, uint32_t first, Child *children, int64_t *height) {
    for (int64_t i = 0; i < count; ++i) {
      const Piece &piece = pieces[i];
      const Child child = piece.subtree ? build(piece.low, piece.high, false, height)
                                        : make_leaf(piece.low, piece.high, height);
      if (child == 0) {
        for (int64_t j = 0; j < i; ++j) free_subtree(context_, children[pieces[j].begin - first]);
        return false;
      }
      for (uint32_t slot = piece.begin; slot < piece.end; ++slot) children[slot - first] = child;
    }
    return true;
  }

  // Number of leaves that a leaf of so many keys may become at once, at least two.
  int64_t pieces_wanted(int64_t held) const {
    if (gapped()) return std::max<int64_t>(4, held / (kMostPlaces / 4));
    return std::min<int64_t>(std::max<int64_t>(held / keys_per_slot(), 2), 256);
  }

 private:
  bool gapped() const { return context_.config.structure == LM_GAPPED; }

  int64_t few() const {
    return few_keys(context_);
  }

  int64_t keys_per_slot() const {
    if (gapped()) return kKeysPerSlot;
    const int64_t first = std::min(context_.config.first_fragments, context_.config.most_fragments);
    return std::max<int64_t>(2, first * context_.config.fragment_keys / 2);
  }

  // Negative where the keys do not fit one leaf.
  double leaf_cost(int64_t low, int64_t high) const {
    const int64_t held = high - low;
    if (gapped()) {
      const int64_t capacity = places_for(held, kFirstDensity);
      if (capacity > kMostPlaces) return -1;
      Line line;
      const GappedCost cost = cost_of_gapped(keys_ + low, held, capacity, &line);
      return leaf_cost_ + static_cast<double>(held) * cost.of(context_.config.insert_share);
    }
    FragmentModel model;
    Spread spread;
    if (!flog_model(context_.config, keys_ + low, held, &model, &spread)) return -1;
    return leaf_cost_ + kScanWeight * spread.squares + 0.02 * leaf_cost_ * model.fragments;
  }

  // Returns whether one leaf of these keys, all of one slot, is worse than a model node over smaller ones would be.
  bool wants_subtree(double cost, int64_t held) const {
    if (!gapped() || held < 4 * kKeysPerSlot) return false;
    const double levels = std::log2(static_cast<double>(held) / static_cast<double>(kKeysPerSlot));
    const double saved = std::min(kSearchWeight * levels / 2, cost / static_cast<double>(held) / 2);
    return saved > 1.5 * kNodeWeight;
  }

  bool is_best_as_leaf(int64_t low, int64_t high) const {
    const int64_t held = high - low;
    if (held < 2 || held <= few()) return true;
    const double cost = leaf_cost(low, high);
    if (cost < 0) return false;
    return !gapped() || held <= kKeysPerSlot || is_cheap(cost, held);
  }

  // ALEX: a leaf that costs no more than another level of nodes needs no look at its parts.
  bool is_cheap(double cost, int64_t held) const {
    return cost >= 0 && cost - leaf_cost_ < kNodeWeight * static_cast<double>(held);
  }

  // At most twice as many slots as leaves are wanted, at least two that hold keys.
  Slots slots_for(int64_t low, int64_t high) const {
    const uint64_t first = keys_[low], last = keys_[high - 1];
    const int64_t wanted = std::min<int64_t>(std::max<int64_t>((high - low) / keys_per_slot(), 2), kMostFanout / 2);
    const uint64_t most = static_cast<uint64_t>(wanted) * 2;
    uint32_t shift = 0;
    while ((last >> shift) - (first >> shift) >= most) ++shift;
    const uint64_t fanout = (last >> shift) - (first >> shift) + 1;
    return Slots{(first >> shift) << shift, shift, static_cast<uint32_t>(fanout)};
  }

  Child make_leaf(int64_t low, int64_t high, int64_t *height) {
    *height = std::max<int64_t>(*height, 1);
    const int64_t held = high - low;
    if (gapped()) {
      Gapped *made = make_gapped(context_, keys_ + low, payloads_ + low, held, places_for(held, kFirstDensity));
      return made == nullptr ? 0 : reinterpret_cast<Child>(made) | kGappedTag;
    }
    FragmentModel model;
    Spread spread;
    flog_model(context_.config, keys_ + low, held, &model, &spread);
    Flog *made = make_flog(context_, model, keys_ + low, payloads_ + low, held);
    return made == nullptr ? 0 : reinterpret_cast<Child>(made) | kFlogTag;
  }

  Context &context_;
  const uint64_t *keys_, *payloads_;
  double leaf_cost_;
};

}  // namespace lm

#endif
