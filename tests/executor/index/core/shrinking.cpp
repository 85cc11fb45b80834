// After most keys were erased the index is about as small as one that was built of the rest, and holds exactly the rest.
// The largest structural change stays within what the configuration allows. Argument: the keys to begin with.
#include "support.hpp"

namespace {

int64_t most_moved(const lm_config &config) {
  return config.structure == LM_FLOG ? int64_t{config.fragment_keys} * config.most_fragments : int64_t{1} << 20;
}

void one_case(const lm_config &config, const std::string &name, int64_t count, bool in_order) {
  std::mt19937_64 random(11);
  Oracle oracle;
  while (static_cast<int64_t>(oracle.size()) < count) oracle[draw(name, random)] = random();
  Made made;
  CHECK(create(config, oracle, &made.index) == LM_OK);
  std::vector<uint64_t> all;
  for (const auto &pair : oracle) all.push_back(pair.first);
  if (!in_order) std::shuffle(all.begin(), all.end(), random);
  const size_t gone = all.size() / 100 * 99;
  std::vector<uint8_t> found(gone);
  for (size_t begin = 0; begin < gone; begin += 1000) {
    const int64_t batch = static_cast<int64_t>(std::min<size_t>(1000, gone - begin));
    int64_t done = 0;
    CHECK(lm_erase(made.index, &all[begin], batch, &found[begin], &done) == LM_OK && done == batch);
  }
  for (size_t i = 0; i < gone; ++i) {
    CHECK(found[i] == 1);
    oracle.erase(all[i]);
  }
  check_equal(made.index, oracle);
  Made fresh;
  CHECK(create(config, oracle, &fresh.index) == LM_OK);
  const lm_facts left = facts_of(made.index), wanted = facts_of(fresh.index);
  std::printf("%s structure %d: %lld bytes, %lld when built again\n", name.c_str(), config.structure,
              static_cast<long long>(left.bytes), static_cast<long long>(wanted.bytes));
  // Memory is gathered once less than a third of it is in use, and leaves may have twice the room of new ones.
  CHECK(left.bytes <= 6 * wanted.bytes + 65536);
  CHECK(left.largest_change_keys <= most_moved(config) || config.structure == LM_HASH);
  // They come back, in another order.
  std::shuffle(all.begin(), all.begin() + static_cast<int64_t>(gone), random);
  int64_t done = 0;
  CHECK(lm_insert(made.index, all.data(), all.data(), static_cast<int64_t>(gone), 0, found.data(), &done) == LM_OK);
  for (size_t i = 0; i < gone; ++i) oracle[all[i]] = all[i];
  check_equal(made.index, oracle);
  const lm_facts back = facts_of(made.index);
  CHECK(back.largest_change_keys <= most_moved(config) || config.structure == LM_HASH);
  CHECK(back.largest_change_keys > 0);
}

}  // namespace

int main(int count, char **arguments) {
  CHECK(count == 2);
  const int64_t keys = std::strtoll(arguments[1], nullptr, 10);
  for (const lm_config &config : {gapped(), flog(), flog(128, 256, 16), flog(16, 8, 2), hash_table()})
    for (const char *name : {"uniform", "lognormal", "nested"})
      for (const bool in_order : {false, true}) one_case(config, name, keys, in_order);
  return 0;
}
