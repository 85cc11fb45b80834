// The gapped array (Ding et al. 2020, ALEX): sorted keys with gaps between them, placed where a linear model predicts them.
// A gap holds the key right of it, so that exponential search works on keys alone; a bitmap says which places are taken.
#ifndef LOADMASTER_INDEX_GAPPED_HPP
#define LOADMASTER_INDEX_GAPPED_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "model.hpp"

namespace lm {

// ALEX's constants.
constexpr double kFirstDensity = 0.7, kLeastDensity = 0.6, kShrinkDensity = 0.3;
constexpr double kSearchWeight = 20, kShiftWeight = 0.5, kNodeWeight = 20, kCatastrophe = 1.5;
constexpr double kMostShiftsEver = 100;
constexpr int64_t kMostPlaces = (int64_t{1} << 24) / 16;  // of a node of 2^24 bytes

// Average iterations of an exponential search, and average shifts of an insert.
struct GappedCost {
  double searches = 0, shifts = 0;
  double of(double insert_share) const { return kSearchWeight * searches + kShiftWeight * shifts * insert_share; }
};

// Iterations of an exponential search that starts `error` places off.
inline int search_iterations(uint64_t error) { return error == 0 ? 0 : 64 - __builtin_clzll(error); }

struct Gapped {
  Line line;
  int64_t capacity, keys_held;
  uint32_t generation, inserts;
  GappedCost expected;
  uint64_t searches, shifts;  // of the inserts since it was built

  uint64_t *keys() { return reinterpret_cast<uint64_t *>(this + 1); }
  const uint64_t *keys() const { return reinterpret_cast<const uint64_t *>(this + 1); }
  uint64_t *payloads() { return keys() + capacity; }
  const uint64_t *payloads() const { return keys() + capacity; }
  uint64_t *bitmap() { return keys() + 2 * capacity; }
  const uint64_t *bitmap() const { return keys() + 2 * capacity; }
  bool taken(int64_t at) const { return (bitmap()[at >> 6] >> (at & 63)) & 1; }
  int64_t words() const { return (capacity + 63) >> 6; }

  static size_t bytes(int64_t capacity) {
    return sizeof(Gapped) + 16 * static_cast<size_t>(capacity) + 8 * static_cast<size_t>((capacity + 63) >> 6);
  }

  // The first place whose key is greater, found from `start` outwards; counts iterations.
  int64_t upper_bound(uint64_t key, int64_t start, uint64_t *iterations) const {
    const uint64_t *all = keys();
    int64_t low, length;  // the answer is in low .. low + length
    if (all[start] > key) {
      int64_t step = 1;
      while (step <= start && all[start - step] > key) {
        step *= 2;
        ++*iterations;
      }
      low = step <= start ? start - step + 1 : 0;
      length = start - step / 2 - low;
    } else {
      int64_t step = 1;
      while (start + step < capacity && all[start + step] <= key) {
        step *= 2;
        ++*iterations;
      }
      low = start + step / 2 + 1;
      length = std::min(start + step, capacity) - low;
    }
    while (length > 0) {
      const int64_t half = length / 2;
      const bool right = all[low + half] <= key;
      low = right ? low + half + 1 : low;
      length = right ? length - half - 1 : half;
    }
    return low;
  }

  // The place of the key, or -1.
  int64_t find(uint64_t key) const {
    const uint64_t *all = keys();
    const int64_t start = line.at(key, capacity);
    uint64_t iterations = 0;
    const int64_t at = upper_bound(key, start, &iterations) - 1;
    return at >= 0 && all[at] == key ? at : -1;
  }

  // The first taken place from `at` on, or `capacity`.
  int64_t next_taken(int64_t at) const {
    if (at >= capacity) return capacity;
    int64_t word = at >> 6;
    uint64_t bits = bitmap()[word] & (~uint64_t{0} << (at & 63));
    while (bits == 0) {
      if (++word == words()) return capacity;
      bits = bitmap()[word];
    }
    return word * 64 + __builtin_ctzll(bits);
  }

  // The gap nearest to `at`, which is taken or is `capacity`. There is one.
  int64_t nearest_gap(int64_t at) const {
    const int64_t right = next_gap(at);
    for (int64_t word = (at - 1) >> 6; word >= 0; --word) {
      if (right < capacity && at - (word * 64 + 63) > right - at) return right;
      uint64_t gaps = ~bitmap()[word];
      if (word == (at - 1) >> 6) gaps &= ~uint64_t{0} >> (63 - ((at - 1) & 63));
      if (gaps == 0) continue;
      const int64_t left = word * 64 + 63 - __builtin_clzll(gaps);
      return right < capacity && right - at < at - left ? right : left;
    }
    return right;
  }

  // The first gap from `at` on, or `capacity`.
  int64_t next_gap(int64_t at) const {
    if (at >= capacity) return capacity;
    int64_t word = at >> 6;
    uint64_t gaps = ~bitmap()[word] & (~uint64_t{0} << (at & 63));
    while (gaps == 0) {
      if (++word == words()) return capacity;
      gaps = ~bitmap()[word];
    }
    return std::min(word * 64 + __builtin_ctzll(gaps), capacity);
  }

  void set_taken(int64_t at) { bitmap()[at >> 6] |= uint64_t{1} << (at & 63); }

  // A key that is not there; `at` is its upper bound and `predicted` the model's place. There is a gap.
  void insert(uint64_t key, uint64_t payload, int64_t at, int64_t predicted) {
    uint64_t *all = keys(), *values = payloads();
    int64_t place;
    if (at < capacity && !taken(at)) {
      place = at;
      if (predicted > at) {
        place = std::min(predicted, next_taken(at + 1) - 1);
        for (int64_t i = at; i < place; ++i) all[i] = key;
      }
      set_taken(place);
    } else {
      const int64_t gap = nearest_gap(at);
      if (gap >= at) {
        std::memmove(all + at + 1, all + at, 8 * static_cast<size_t>(gap - at));
        std::memmove(values + at + 1, values + at, 8 * static_cast<size_t>(gap - at));
        place = at;
        shifts += static_cast<uint64_t>(gap - at);
      } else {
        std::memmove(all + gap, all + gap + 1, 8 * static_cast<size_t>(at - 1 - gap));
        std::memmove(values + gap, values + gap + 1, 8 * static_cast<size_t>(at - 1 - gap));
        place = at - 1;
        shifts += static_cast<uint64_t>(at - 1 - gap);
      }
      set_taken(gap);
    }
    all[place] = key;
    values[place] = payload;
    ++keys_held;
    ++inserts;
  }

  void erase(int64_t at) {
    uint64_t *all = keys();
    const uint64_t right = at + 1 < capacity ? all[at + 1] : kLastKey;
    bitmap()[at >> 6] &= ~(uint64_t{1} << (at & 63));
    all[at] = right;
    for (int64_t i = at - 1; i >= 0 && !taken(i); --i) all[i] = right;
    --keys_held;
  }

  // Copies pairs from the place `from` on, up to `most`; the place after the last one.
  int64_t copy(int64_t from, int64_t most, Pairs *to) const {
    int64_t at = next_taken(from);
    while (at < capacity && most-- > 0) {
      to->keys[to->count] = keys()[at];
      to->payloads[to->count++] = payloads()[at];
      at = next_taken(at + 1);
    }
    return at;
  }
};

inline int64_t places_for(int64_t count, double density) {
  const int64_t places = static_cast<int64_t>(static_cast<double>(count) / density) + 1;
  return std::max<int64_t>(places, 16);
}

// Cost of a gapped array of these keys: of a long one, four stretches are tried. Keys that are packed without a
// gap make an insert shift a quarter of them on average.
inline GappedCost expected_cost(const uint64_t *keys, int64_t count, const Line &line, int64_t capacity) {
  constexpr int64_t kStretch = 4096;
  GappedCost cost;
  if (count == 0) return cost;
  const int64_t stretches = count > 4 * kStretch ? 4 : 1, length = stretches == 1 ? count : kStretch;
  uint64_t iterations = 0;
  double packed = 0;
  for (int64_t stretch = 0; stretch < stretches; ++stretch) {
    const int64_t begin = stretches == 1 ? 0 : stretch * (count - length) / (stretches - 1);
    int64_t last = line.at(keys[begin], capacity) - 1;
    if (stretches > 1) last = std::max(last, begin - 1);
    int64_t run = 0;
    for (int64_t i = begin; i < begin + length; ++i) {
      const int64_t predicted = line.at(keys[i], capacity);
      const int64_t place = std::min(std::max(predicted, last + 1), capacity - (count - i));
      iterations += static_cast<uint64_t>(
          search_iterations(static_cast<uint64_t>(place > predicted ? place - predicted : predicted - place)));
      if (place != last + 1) {
        packed += static_cast<double>(run) * static_cast<double>(run) / 4;
        run = 0;
      }
      ++run;
      last = place;
    }
    packed += static_cast<double>(run) * static_cast<double>(run) / 4;
  }
  const double tried = static_cast<double>(stretches * length);
  cost.searches = static_cast<double>(iterations) / tried;
  cost.shifts = packed / tried;
  return cost;
}

// The model for `capacity` places and what it is expected to cost.
inline GappedCost cost_of_gapped(const uint64_t *keys, int64_t count, int64_t capacity, Line *line) {
  *line = fit_line(keys, count);
  if (count > 0) line->scale(static_cast<double>(capacity) / static_cast<double>(count));
  return expected_cost(keys, count, *line, capacity);
}

// A gapped array of sorted keys, or null.
// With `scaled`, its model serves, scaled to the new capacity, and its expectation holds on (ALEX's expansion).
inline Gapped *make_gapped(Context &context, const uint64_t *keys, const uint64_t *payloads, int64_t count,
                           int64_t capacity, const Gapped *scaled = nullptr) {
  Gapped *made = static_cast<Gapped *>(context.pool.take(Gapped::bytes(capacity)));
  if (made == nullptr) return nullptr;
  made->capacity = capacity;
  made->keys_held = count;
  made->generation = context.generation;
  made->inserts = 0;
  made->searches = made->shifts = 0;
  if (scaled != nullptr) {
    made->line = scaled->line;
    made->line.scale(static_cast<double>(capacity) / static_cast<double>(scaled->capacity));
    made->expected = scaled->expected;
  } else {
    made->expected = cost_of_gapped(keys, count, capacity, &made->line);
  }
  uint64_t *all = made->keys(), *values = made->payloads();
  std::memset(made->bitmap(), 0, 8 * static_cast<size_t>(made->words()));
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place =
        std::min(std::max(made->line.at(keys[i], capacity), last + 1), capacity - (count - i));
    for (int64_t gap = last + 1; gap < place; ++gap) all[gap] = keys[i];
    all[place] = keys[i];
    values[place] = payloads[i];
    made->set_taken(place);
    last = place;
  }
  for (int64_t gap = last + 1; gap < capacity; ++gap) all[gap] = kLastKey;
  context.count_leaf(LM_GAPPED, made->generation, 1);
  return made;
}

inline void free_gapped(Context &context, Gapped *leaf) {
  context.count_leaf(LM_GAPPED, leaf->generation, -1);
  context.pool.give(leaf);
}

enum class Upkeep { kNone, kExpand, kDecide, kSplit };

// Upkeep that ALEX does before an insert. Msi and Msh, where given, replace its rule of cost: the average since the node was
// built must not exceed the larger of them and what was expected.
inline Upkeep upkeep_before_insert(const Gapped &leaf, const lm_config &config) {
  const bool full = leaf.keys_held + 1 > leaf.capacity * 4 / 5;  // a density of 0.8
  if (!full && (leaf.inserts & 63) != 63) return Upkeep::kNone;
  const double inserts = std::max<double>(1, leaf.inserts);
  const double searches = static_cast<double>(leaf.searches) / inserts;
  const double shifts = static_cast<double>(leaf.shifts) / inserts;
  const bool enough = leaf.inserts >= 64 && leaf.inserts >= static_cast<uint64_t>(leaf.keys_held) / 16;
  if (leaf.inserts >= 63 && shifts > kMostShiftsEver) return Upkeep::kSplit;
  bool deviates;
  if (config.most_searches > 0 || config.most_shifts > 0) {
    const double most_searches = std::max(kCatastrophe * leaf.expected.searches, config.most_searches);
    const double most_shifts = std::max(kCatastrophe * leaf.expected.shifts, config.most_shifts);
    deviates = enough && ((config.most_searches > 0 && searches > most_searches) ||
                          (config.most_shifts > 0 && shifts > most_shifts));
    if (deviates) return Upkeep::kDecide;
  } else {
    GappedCost seen;
    seen.searches = searches;
    seen.shifts = shifts;
    const double cost = seen.of(config.insert_share);
    deviates = enough && cost > kNodeWeight && cost > kCatastrophe * leaf.expected.of(config.insert_share);
  }
  if (!full) return Upkeep::kNone;
  if (deviates) return Upkeep::kDecide;
  return places_for(leaf.keys_held, kLeastDensity) > kMostPlaces ? Upkeep::kSplit : Upkeep::kExpand;
}

}  // namespace lm

#endif
