// What the test programs share: key distributions, configurations, and checks that end the program.
#ifndef LOADMASTER_TEST_SUPPORT_HPP
#define LOADMASTER_TEST_SUPPORT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "index.h"

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

constexpr uint64_t kMostKey = ~uint64_t{0};

inline lm_config gapped(double searches = 0, double shifts = 0, double share = 0.5) {
  return lm_config{LM_GAPPED, searches, shifts, share, 0, 0, 0, 0};
}
inline lm_config flog(int32_t keys = 64, int32_t most = 256, int32_t first = 16) {
  return lm_config{LM_FLOG, 0, 0, 0, keys, most, first, 0};
}
inline lm_config sorted_array() { return lm_config{LM_SORTED, 0, 0, 0, 0, 0, 0, 0}; }
inline lm_config hash_table() { return lm_config{LM_HASH, 0, 0, 0, 0, 0, 0, 0}; }

const char *const kDistributions[] = {"uniform",  "lognormal", "powers",      "clustered",
                                      "extremes", "outliers",  "consecutive", "nested"};

inline uint64_t draw(const std::string &name, std::mt19937_64 &random) {
  const uint64_t bits = random();
  if (name == "uniform") return bits;
  if (name == "lognormal") {
    std::lognormal_distribution<double> lognormal(0, 2);
    return static_cast<uint64_t>(std::min(lognormal(random) / 2e4, 1.0) * 9.2e18);
  }
  if (name == "powers") return (uint64_t{1} << (bits & 63)) + ((bits >> 8) & 3) * (bits >> 60);
  if (name == "clustered") return (bits % 13) * 0x1234567890ABCDEu + ((bits >> 20) & 0x3FFF) * ((bits & 64) ? 1 : 977);
  if (name == "extremes") return (bits & 1) ? kMostKey - (bits >> 52) : bits >> 52;
  if (name == "outliers") return (bits & 1023) == 0 ? bits : 0x7000000000000000u + ((bits >> 12) & 0xFFFF);
  if (name == "consecutive") return 1000000 + (bits >> 50);
  // Clusters within clusters: half of the keys share ever more leading bits.
  const int level = __builtin_ctzll(bits | (uint64_t{1} << 63));
  return level >= 60 ? bits : (0xAAAAAAAAAAAAAAAAu & ~(kMostKey >> level)) | ((bits * 0x9E3779B97F4A7C15u) >> level);
}

struct Made {
  lm_index *index = nullptr;
  ~Made() { lm_destroy(index); }
};

inline lm_facts facts_of(const lm_index *index) {
  lm_facts facts;
  CHECK(lm_facts_of(index, &facts) == LM_OK);
  return facts;
}

using Oracle = std::map<uint64_t, uint64_t>;

inline int create(const lm_config &config, const Oracle &oracle, lm_index **made) {
  std::vector<uint64_t> keys, payloads;
  for (const auto &pair : oracle) {
    keys.push_back(pair.first);
    payloads.push_back(pair.second);
  }
  return lm_create(&config, keys.data(), payloads.data(), static_cast<int64_t>(keys.size()), made);
}

// The index holds exactly the oracle's pairs, seen by a dump, by lookups and by its count.
inline void check_equal(const lm_index *index, const Oracle &oracle) {
  const size_t held = oracle.size();
  CHECK(facts_of(index).keys == static_cast<int64_t>(held));
  std::vector<uint64_t> keys(held + 1), payloads(held + 1), asked, wanted;
  std::vector<uint8_t> found(2 * held + 2);
  CHECK(lm_dump(index, keys.data(), payloads.data()) == LM_OK);
  size_t at = 0;
  for (const auto &pair : oracle) {
    CHECK(keys[at] == pair.first);
    CHECK(payloads[at++] == pair.second);
    asked.push_back(pair.first);
    asked.push_back(pair.first + 1);
  }
  std::vector<uint64_t> got(asked.size() + 1);
  CHECK(lm_lookup(index, asked.data(), static_cast<int64_t>(asked.size()), got.data(), found.data()) == LM_OK);
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto there = oracle.find(asked[i]);
    CHECK(found[i] == (there != oracle.end()));
    CHECK(got[i] == (there != oracle.end() ? there->second : 0));
  }
}

#endif
