// Random operation sequences on every structure, held against std::map. Arguments: the seed and operations per case.
#include "support.hpp"

namespace {

void one_batch(lm_index *index, const lm_config &config, const std::string &name, Oracle &oracle,
               std::mt19937_64 &random) {
  const int64_t count = 1 + static_cast<int64_t>(random() % 300);
  std::vector<uint64_t> keys(static_cast<size_t>(count)), payloads(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = draw(name, random);
    if (random() % 4 == 0 && !oracle.empty()) {
      const auto near = oracle.lower_bound(keys[i]);
      if (near != oracle.end()) keys[i] = near->first;
    }
    payloads[i] = random();
  }
  std::vector<uint8_t> flags(keys.size(), 9);
  int64_t done = -1;
  const uint64_t what = random() % 8;
  if (what < 4) {
    const int upsert = static_cast<int>(random() & 1);
    const int status = lm_insert(index, keys.data(), payloads.data(), count, upsert, flags.data(), &done);
    if (config.structure == LM_SORTED) {
      CHECK(status == LM_READ_ONLY && done == 0);
      return;
    }
    CHECK(status == LM_OK && done == count);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool there = oracle.count(keys[i]) != 0;
      CHECK(flags[i] == there);
      if (!there || upsert != 0) oracle[keys[i]] = payloads[i];
    }
  } else if (what < 6) {
    const int status = lm_erase(index, keys.data(), count, flags.data(), &done);
    if (config.structure == LM_SORTED) {
      CHECK(status == LM_READ_ONLY && done == 0);
      return;
    }
    CHECK(status == LM_OK && done == count);
    for (size_t i = 0; i < keys.size(); ++i) CHECK(flags[i] == oracle.erase(keys[i]));
  } else if (what < 7) {
    CHECK(lm_lookup(index, keys.data(), count, payloads.data(), flags.data()) == LM_OK);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto there = oracle.find(keys[i]);
      CHECK(flags[i] == (there != oracle.end()));
      CHECK(payloads[i] == (there != oracle.end() ? there->second : 0));
    }
  } else {
    const uint64_t first = std::min(keys.front(), keys.back());
    const uint64_t last = random() % 4 == 0 ? kMostKey : std::max(keys.front(), keys.back());
    const int64_t most = static_cast<int64_t>(random() % 2000);
    std::vector<uint64_t> got(static_cast<size_t>(most) + 1), values(got.size());
    int64_t came = -1;
    const int status = lm_range(index, first, last, most, got.data(), values.data(), &came);
    if (config.structure == LM_HASH) {
      CHECK(status == LM_NO_ORDER);
      return;
    }
    CHECK(status == LM_OK);
    int64_t at = 0;
    for (auto it = oracle.lower_bound(first); it != oracle.end() && it->first <= last && at < most; ++it, ++at) {
      CHECK(at < came);
      CHECK(got[static_cast<size_t>(at)] == it->first);
      CHECK(values[static_cast<size_t>(at)] == it->second);
    }
    CHECK(at == came);
  }
}

void one_case(const lm_config &config, const std::string &name, uint64_t seed, int64_t batches) {
  std::mt19937_64 random(seed);
  Oracle oracle;
  const size_t first = seed % 3 == 0 ? 0 : 1 + random() % 6000;
  for (size_t i = 0; i < first; ++i) oracle[draw(name, random)] = random();
  if (seed % 2 == 0) {
    oracle[0] = 7;
    oracle[kMostKey] = 8;
  }
  Made made;
  CHECK(create(config, oracle, &made.index) == LM_OK);
  check_equal(made.index, oracle);
  for (int64_t i = 0; i < batches; ++i) {
    one_batch(made.index, config, name, oracle, random);
    if (i % 64 == 63) check_equal(made.index, oracle);
  }
  check_equal(made.index, oracle);
  CHECK(facts_of(made.index).depth <= 64);
  if (config.structure == LM_SORTED) return;
  // All keys go, and some come back.
  std::vector<uint64_t> keys;
  for (const auto &pair : oracle) keys.push_back(pair.first);
  std::shuffle(keys.begin(), keys.end(), random);
  std::vector<uint8_t> found(keys.size() + 1);
  int64_t done;
  CHECK(lm_erase(made.index, keys.data(), static_cast<int64_t>(keys.size()), found.data(), &done) == LM_OK);
  oracle.clear();
  check_equal(made.index, oracle);
  for (int64_t i = 0; i < 8; ++i) one_batch(made.index, config, name, oracle, random);
  check_equal(made.index, oracle);
}

}  // namespace

int main(int count, char **arguments) {
  CHECK(count == 3);
  uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
  const int64_t batches = std::strtoll(arguments[2], nullptr, 10);
  const lm_config configs[] = {gapped(),         gapped(2, 4),      gapped(0, 1, 1), flog(), flog(4, 1, 1),
                               flog(4, 8, 2),    flog(10, 64, 3),   flog(300, 4, 4), flog(4096, 2, 1),
                               sorted_array(),   hash_table()};
  for (const lm_config &config : configs)
    for (const char *name : kDistributions) one_case(config, name, seed++, batches);
  return 0;
}
