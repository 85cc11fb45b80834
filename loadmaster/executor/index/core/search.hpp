// Linear search among the unsorted keys of a fragment: eight keys a step with AVX2 where the processor has it.
// Searches may read up to seven keys past `count`; the memory behind a fragment's keys holds its payloads.
#ifndef LOADMASTER_INDEX_SEARCH_HPP
#define LOADMASTER_INDEX_SEARCH_HPP

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lm {

inline int64_t find_plain(const uint64_t *keys, int64_t count, uint64_t key) {
  for (int64_t i = 0; i < count; i += 8) {
    unsigned hits = 0;
    for (unsigned j = 0; j < 8; ++j) hits |= static_cast<unsigned>(keys[i + j] == key) << j;
    if (hits != 0) {
      const int64_t at = i + __builtin_ctz(hits);
      return at < count ? at : -1;
    }
  }
  return -1;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline int64_t find_avx2(const uint64_t *keys, int64_t count, uint64_t key) {
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(key));
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i *four = reinterpret_cast<const __m256i *>(keys + i);
    const __m256i low = _mm256_cmpeq_epi64(_mm256_loadu_si256(four), wanted);
    const __m256i high = _mm256_cmpeq_epi64(_mm256_loadu_si256(four + 1), wanted);
    const __m256i any = _mm256_or_si256(low, high);
    if (!_mm256_testz_si256(any, any)) {
      const unsigned hits = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(low))) |
                            static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(high))) << 4;
      const int64_t at = i + __builtin_ctz(hits);
      return at < count ? at : -1;
    }
  }
  return -1;
}
inline const bool has_avx2 = __builtin_cpu_supports("avx2");
#endif

// Where the key is among the first `count`, or -1.
inline int64_t find_unsorted(const uint64_t *keys, int64_t count, uint64_t key) {
#if defined(__x86_64__)
  if (has_avx2) return find_avx2(keys, count, key);
#endif
  return find_plain(keys, count, key);
}

}  // namespace lm

#endif
