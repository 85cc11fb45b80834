// Refused arguments, limits, failed allocations at every n, and changes of configuration: the index stays as it was.
#include "support.hpp"

namespace {

Oracle draw_oracle(const char *name, size_t count, std::mt19937_64 &random) {
  Oracle oracle;
  for (size_t i = 0; i < count; ++i) oracle[draw(name, random)] = random();
  return oracle;
}

void refused_arguments() {
  const uint64_t unsorted[] = {1, 2, 2, 1}, twice[] = {1, 2, 2, 3};
  lm_index *made = nullptr;
  for (const lm_config &config : {gapped(), flog(), sorted_array(), hash_table()}) {
    CHECK(lm_create(&config, unsorted, unsorted, 4, &made) == LM_UNSORTED && made == nullptr);
    CHECK(lm_create(&config, twice, twice, 4, &made) == LM_DUPLICATE && made == nullptr);
  }
  lm_config bad = gapped();
  bad.structure = 4;
  CHECK(lm_check_config(&bad) == LM_BAD_CONFIG);
  for (const lm_config &config : {gapped(-1), gapped(0, NAN), gapped(0, 0, 1.5), flog(3), flog(4097), flog(64, 0),
                                  flog(64, 8, 9), flog(64, 8, 0)}) {
    CHECK(lm_check_config(&config) == LM_BAD_CONFIG);
    CHECK(lm_create(&config, twice, twice, 2, &made) == LM_BAD_CONFIG && made == nullptr);
  }
}

// Every allocation of a bulk load, and then of inserts and erases, fails once.
void failed_allocations(const lm_config &config, const char *name) {
  std::mt19937_64 random(5);
  Oracle oracle = draw_oracle(name, 3000, random);
  Made made;
  int64_t n = 1;
  while (true) {
    lm_fail_allocation(n++);
    const int status = create(config, oracle, &made.index);
    if (status == LM_OK) break;
    CHECK(status == LM_NO_MEMORY && made.index == nullptr);
  }
  lm_fail_allocation(0);
  CHECK(n > 2);
  if (config.structure == LM_SORTED) return;
  std::vector<uint64_t> keys(400), payloads(400);
  std::vector<uint8_t> flags(400);
  int64_t failures = 0;
  for (int round = 0; round < 300; ++round) {
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = draw(name, random);
      payloads[i] = random();
    }
    int64_t done = -1;
    lm_fail_allocation(random() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 12));
    if (round % 4 == 3) {
      CHECK(lm_erase(made.index, keys.data(), 400, flags.data(), &done) == LM_OK && done == 400);
      for (size_t i = 0; i < 400; ++i) CHECK(flags[i] == oracle.erase(keys[i]));
    } else {
      const int status = lm_insert(made.index, keys.data(), payloads.data(), 400, 1, flags.data(), &done);
      CHECK(status == LM_OK ? done == 400 : status == LM_NO_MEMORY && done < 400);
      failures += status != LM_OK;
      for (size_t i = 0; i < static_cast<size_t>(done); ++i) {
        CHECK(flags[i] == oracle.count(keys[i]));
        oracle[keys[i]] = payloads[i];
      }
    }
    lm_fail_allocation(0);
    if (round % 16 == 0) check_equal(made.index, oracle);
  }
  check_equal(made.index, oracle);
  CHECK(failures > 0);
}

void limits(lm_config config, const char *name) {
  std::mt19937_64 random(6);
  Oracle oracle = draw_oracle(name, 3000, random);
  Made made;
  CHECK(create(config, oracle, &made.index) == LM_OK);
  const int64_t bytes = facts_of(made.index).bytes;
  CHECK(bytes < 128 * 3000 && bytes >= 16 * static_cast<int64_t>(oracle.size()));
  Made limited;
  config.most_bytes = 4096;
  CHECK(create(config, oracle, &limited.index) == LM_OVER_LIMIT && limited.index == nullptr);
  config.most_bytes = 2 * bytes;
  CHECK(create(config, oracle, &limited.index) == LM_OK);
  if (config.structure == LM_SORTED) return;
  int64_t refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> keys(200);
    std::vector<uint8_t> flags(200);
    for (uint64_t &key : keys) key = random();
    int64_t done = -1;
    const int status = lm_insert(limited.index, keys.data(), keys.data(), 200, 1, flags.data(), &done);
    CHECK(status == LM_OK || (status == LM_OVER_LIMIT && done < 200));
    refused += status != LM_OK;
    for (size_t i = 0; i < static_cast<size_t>(done); ++i) oracle[keys[i]] = keys[i];
    CHECK(facts_of(limited.index).bytes <= config.most_bytes + 16384);
  }
  CHECK(refused > 0);
  check_equal(limited.index, oracle);
  // What is erased makes room again.
  std::vector<uint64_t> keys;
  for (const auto &pair : oracle) keys.push_back(pair.first);
  std::vector<uint8_t> flags(keys.size());
  int64_t done = -1;
  CHECK(lm_erase(limited.index, keys.data(), static_cast<int64_t>(keys.size()), flags.data(), &done) == LM_OK);
  oracle.clear();
  check_equal(limited.index, oracle);
  CHECK(lm_insert(limited.index, keys.data(), keys.data(), 500, 1, flags.data(), &done) == LM_OK);
}

// Between configurations and back, a few leaves at a time, with inserts between and with failures.
void reconfigure(const char *name) {
  std::mt19937_64 random(7);
  Oracle oracle = draw_oracle(name, 20000, random);
  Made made;
  CHECK(create(gapped(), oracle, &made.index) == LM_OK);
  const lm_config configs[] = {flog(16, 8, 2), gapped(4, 16), flog(), flog(4, 4, 2), gapped(), flog(200, 16, 4)};
  for (const lm_config &config : configs) {
    int64_t left = -1, before = kMostKey >> 1;
    CHECK(lm_reconfigure(made.index, &config, 0, &left) == LM_OK && left > 0);
    for (int i = 0; i < 40; ++i) {
      const uint64_t key = draw(name, random);
      uint8_t present;
      int64_t done;
      CHECK(lm_insert(made.index, &key, &key, 1, 1, &present, &done) == LM_OK);
      oracle[key] = key;
    }
    check_equal(made.index, oracle);
    for (int64_t n = 1; left > 0; ++n) {
      lm_fail_allocation(n);
      const int status = lm_reconfigure(made.index, &config, 3, &left);
      CHECK(status == LM_OK || status == LM_NO_MEMORY);
      lm_fail_allocation(0);
      CHECK(left <= before);
      before = left;
    }
    check_equal(made.index, oracle);
    const lm_facts facts = facts_of(made.index);
    CHECK(facts.leaves == facts.leaves_of[config.structure]);
    CHECK((facts.fragments > 0) == (config.structure == LM_FLOG));
  }
  int64_t left;
  const lm_config hash = hash_table();
  CHECK(lm_reconfigure(made.index, &hash, 1, &left) == LM_BAD_CONFIG);
  lm_config tight = flog(200, 16, 4);
  tight.most_bytes = 4096;
  CHECK(lm_reconfigure(made.index, &tight, 1, &left) == LM_OVER_LIMIT);
  check_equal(made.index, oracle);
}

// Ascending and descending inserts: depth and bytes stay bounded. When all keys go, large arrays go back to the system,
// and what small empty leaves keep serves the keys that come next.
void long_runs(const lm_config &config) {
  const uint64_t middle = uint64_t{1} << 40;
  Oracle start = {{middle, 1}};
  Made made;
  CHECK(create(config, start, &made.index) == LM_OK);
  std::vector<uint64_t> keys(1000);
  std::vector<uint8_t> flags(1000);
  const uint64_t batches = 200;
  int64_t done;
  for (uint64_t batch = 0; batch < batches; ++batch) {
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t rank = batch / 2 * 1000 + i + 1;
      keys[i] = batch % 2 == 0 ? middle + 3 * rank : middle - 5 * rank;
    }
    CHECK(lm_insert(made.index, keys.data(), keys.data(), 1000, 0, flags.data(), &done) == LM_OK);
  }
  lm_facts facts = facts_of(made.index);
  CHECK(facts.keys == static_cast<int64_t>(batches) * 1000 + 1);
  CHECK(facts.depth <= 12);
  CHECK(facts.bytes < 60 * facts.keys);
  const int64_t full = facts.bytes;
  std::vector<uint64_t> all(static_cast<size_t>(facts.keys)), payloads(all.size());
  std::vector<uint8_t> found(all.size());
  CHECK(lm_dump(made.index, all.data(), payloads.data()) == LM_OK);
  CHECK(std::is_sorted(all.begin(), all.end()));
  CHECK(lm_erase(made.index, all.data(), facts.keys, found.data(), &done) == LM_OK);
  facts = facts_of(made.index);
  CHECK(facts.keys == 0 && facts.bytes <= full + 65536);
  CHECK(config.structure != LM_HASH || facts.bytes < full / 10);
  CHECK(lm_insert(made.index, all.data(), all.data(), facts.keys, 0, found.data(), &done) == LM_OK);
  CHECK(facts_of(made.index).bytes <= full * 5 / 4);
}

}  // namespace

int main() {
  refused_arguments();
  const lm_config configs[] = {gapped(), gapped(1, 1), flog(), flog(4, 2, 1), flog(16, 8, 2), sorted_array(), hash_table()};
  for (const lm_config &config : configs) {
    for (const char *name : {"uniform", "clustered", "nested"}) failed_allocations(config, name);
    limits(config, "uniform");
  }
  for (const char *name : {"uniform", "lognormal", "clustered", "nested"}) reconfigure(name);
  for (const lm_config &config : {gapped(), flog(), flog(16, 8, 2), hash_table()}) long_runs(config);
  return 0;
}
