// One writer and three readers: a payload is a function of its key, so a torn or misplaced read shows. Keys that are never
// erased are always found. Arguments: the least batches of the writer and the least lookups, per structure.
#include <atomic>
#include <thread>

#include "support.hpp"

namespace {

uint64_t payload_of(uint64_t key) { return key * 0x9E3779B97F4A7C15u ^ 0x1234567; }

struct Readers {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> lookups{0};
};

void read(const lm_index *index, const std::vector<uint64_t> &kept, Readers &all, uint64_t seed, bool ordered) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> keys(200), payloads(300), range(300), others(1 << 12);
  std::vector<uint8_t> found(200);
  for (uint64_t &key : others) key = draw("lognormal", random);
  int64_t round = 0;
  do {
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t bits = random();
      keys[i] = i % 2 == 0 ? kept[bits % kept.size()] : others[bits % others.size()];
    }
    CHECK(lm_lookup(index, keys.data(), 200, payloads.data(), found.data()) == LM_OK);
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(i % 2 == 1 || found[i] == 1);
      CHECK(payloads[i] == (found[i] != 0 ? payload_of(keys[i]) : 0));
    }
    if (ordered && round++ % 16 == 0) {
      int64_t count = 0;
      CHECK(lm_range(index, keys[0], kMostKey, 300, range.data(), payloads.data(), &count) == LM_OK);
      CHECK(count > 0 && range[0] == keys[0]);
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        CHECK(payloads[i] == payload_of(range[i]));
        CHECK(i == 0 || range[i] > range[i - 1]);
      }
      CHECK(facts_of(index).keys > 0);
    }
    all.lookups.fetch_add(200);
  } while (!all.stop.load());
}

void one_case(const lm_config &config, int64_t batches, int64_t lookups) {
  std::mt19937_64 random(3);
  Oracle oracle;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t key = draw("lognormal", random) & ~uint64_t{1};
    oracle[key] = payload_of(key);
  }
  std::vector<uint64_t> kept;
  for (const auto &pair : oracle) kept.push_back(pair.first);
  Made made;
  CHECK(create(config, oracle, &made.index) == LM_OK);
  Readers all;
  std::vector<std::thread> readers;
  for (uint64_t seed = 0; seed < 3; ++seed)
    readers.emplace_back([&, seed] { read(made.index, kept, all, seed, config.structure != LM_HASH); });
  std::vector<uint64_t> keys(300), payloads(300);
  std::vector<uint8_t> flags(300);
  int64_t done, left;
  for (int64_t batch = 0; batch < batches || all.lookups.load() < lookups; ++batch) {
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = draw("lognormal", random) | 1;  // never one of those that are kept
      payloads[i] = payload_of(keys[i]);
    }
    if (batch % 3 == 2) CHECK(lm_erase(made.index, keys.data(), 300, flags.data(), &done) == LM_OK);
    else CHECK(lm_insert(made.index, keys.data(), payloads.data(), 300, 1, flags.data(), &done) == LM_OK);
    if (config.structure <= LM_FLOG && batch % 16 == 8) {
      const lm_config other = batch % 32 == 8 ? flog(32, 16, 4) : gapped();
      CHECK(lm_reconfigure(made.index, &other, 4, &left) == LM_OK);
    }
  }
  all.stop.store(true);
  for (std::thread &reader : readers) reader.join();
  const lm_facts facts = facts_of(made.index);
  std::printf("structure %d: %lld lookups, %lld inserts, %lld erases, %lld ranges, %lld structural changes\n",
              config.structure, static_cast<long long>(facts.lookups), static_cast<long long>(facts.inserts),
              static_cast<long long>(facts.erases), static_cast<long long>(facts.scans),
              static_cast<long long>(facts.structural_changes));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char **arguments) {
  CHECK(count == 3);
  const int64_t batches = std::strtoll(arguments[1], nullptr, 10), lookups = std::strtoll(arguments[2], nullptr, 10);
  for (const lm_config &config : {gapped(), flog(), hash_table()}) one_case(config, batches, lookups);
  return 0;
}
