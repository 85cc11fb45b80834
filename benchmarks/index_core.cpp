// Throughput and memory of the index core on generated keys: bulk load, lookups, inserts, single-threaded CPU seconds.
// Build: g++ -std=c++17 -O3 -pthread -Iloadmaster/executor/index/core benchmarks/index_core.cpp
//        loadmaster/executor/index/core/index.cpp -o index_core
// Run:   ./index_core SET BULK OPERATIONS INSERT_SHARE STRUCTURE [mf Mnf nf | Msi Msh share]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "index.h"

static double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Keys without duplicates, in random order. "clustered": a random walk of segments whose densities differ a thousandfold.
static std::vector<uint64_t> make_keys(const std::string &set, size_t count) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> keys;
  const size_t more = count + count / 50 + 1000;
  if (set == "uniform") {
    for (size_t i = 0; i < more; ++i) keys.push_back(random() >> 1);
  } else if (set == "lognormal") {
    std::lognormal_distribution<double> lognormal(0, 2);
    for (size_t i = 0; i < more; ++i)
      keys.push_back(static_cast<uint64_t>(std::min(lognormal(random) / 40000, 1.0) * 9.2233720368547e18));
  } else {
    uint64_t at = random() >> 20;
    while (keys.size() < more) {
      const double density = std::exp(std::uniform_real_distribution<double>(0, 7)(random));
      const size_t length = 20 + random() % 400;
      for (size_t i = 0; i < length; ++i) {
        at += 1 + static_cast<uint64_t>(std::exponential_distribution<double>(1 / density)(random) * 1e8);
        keys.push_back(at);
      }
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::shuffle(keys.begin(), keys.end(), random);
  if (keys.size() < count) std::abort();
  keys.resize(count);
  return keys;
}

int main(int count, char **arguments) {
  if (count < 6) return 2;
  const auto number = [&](int i, double otherwise) { return count > i ? std::atof(arguments[i]) : otherwise; };
  const std::string set = arguments[1], structure = arguments[5];
  const size_t bulk = std::strtoull(arguments[2], nullptr, 10), operations = std::strtoull(arguments[3], nullptr, 10);
  const double share = std::atof(arguments[4]);
  lm_config config{};
  config.structure = structure == "gapped" ? LM_GAPPED : structure == "flog" ? LM_FLOG : structure == "sorted" ? LM_SORTED : LM_HASH;
  if (config.structure == LM_GAPPED) {
    config.most_searches = number(6, 0);
    config.most_shifts = number(7, 0);
    config.insert_share = number(8, share);
  } else {
    config.fragment_keys = static_cast<int32_t>(number(6, 64));
    config.most_fragments = static_cast<int32_t>(number(7, 256));
    config.first_fragments = static_cast<int32_t>(number(8, 16));
  }
  const size_t inserts = static_cast<size_t>(share * static_cast<double>(operations));
  const std::vector<uint64_t> keys = make_keys(set, bulk + inserts);
  std::vector<uint64_t> first(keys.begin(), keys.begin() + static_cast<long>(bulk));
  std::sort(first.begin(), first.end());
  lm_index *index;
  double began = cpu_seconds();
  if (lm_create(&config, first.data(), first.data(), static_cast<int64_t>(bulk), &index) != LM_OK) return 1;
  const double load = cpu_seconds() - began;
  // Batches of 1000 operations: inserts and lookups of keys that are there, in turn.
  std::mt19937_64 random(11);
  std::vector<uint64_t> asked(1000), payloads(1000);
  std::vector<uint8_t> flags(1000);
  size_t inserted = 0;
  uint64_t wrong = 0;
  double seconds = 0;
  for (size_t at = 0; at < operations; at += 1000) {
    const int64_t writes = std::min<int64_t>(1000, static_cast<int64_t>(static_cast<double>(at + 1000) * share - static_cast<double>(inserted) + 0.5));
    for (size_t i = 0; i < 1000; ++i) asked[i] = keys[random() % (bulk + inserted)];
    int64_t done = 0;
    began = cpu_seconds();
    if (writes > 0 && lm_insert(index, &keys[bulk + inserted], &keys[bulk + inserted], writes, 1, flags.data(), &done) != LM_OK) return 1;
    if (writes < 1000) lm_lookup(index, asked.data(), 1000 - writes, payloads.data(), flags.data());
    seconds += cpu_seconds() - began;
    inserted += static_cast<size_t>(done);
    for (int64_t i = 0; i < 1000 - writes; ++i) wrong += payloads[static_cast<size_t>(i)] != asked[static_cast<size_t>(i)];
  }
  lm_facts facts;
  lm_facts_of(index, &facts);
  std::printf("%-9s ins %.2f %-6s load %6.3f s  %7.2f Mops  %6.1f MB %5.1f B/key  leaves %lld frags %lld depth %lld changes %lld longest %.2f ms wrong %llu\n",
              set.c_str(), share, structure.c_str(), load, static_cast<double>(operations) / seconds / 1e6,
              static_cast<double>(facts.bytes) / 1e6, static_cast<double>(facts.bytes) / static_cast<double>(facts.keys),
              static_cast<long long>(facts.leaves), static_cast<long long>(facts.fragments), static_cast<long long>(facts.depth),
              static_cast<long long>(facts.structural_changes), static_cast<double>(facts.longest_change_ns) / 1e6,
              static_cast<unsigned long long>(wrong));
  lm_destroy(index);
  return wrong != 0;
}
