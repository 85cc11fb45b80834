// Search among the unsorted keys of a fragment: one byte of a hash of each key, its digest, is in front of them, so that
// a search reads a byte a key, sixteen in one instruction where the processor has them, and only then the keys that may be it.
#ifndef LOADMASTER_INDEX_SEARCH_HPP
#define LOADMASTER_INDEX_SEARCH_HPP

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lm {

constexpr int64_t kDigestStep = 16;  // digests are read in steps of so many

inline uint8_t digest_of(uint64_t key) { return static_cast<uint8_t>((key * 0x9E3779B97F4A7C15u) >> 56); }

// Which of the sixteen digests are this one, as bits.
inline uint32_t digest_hits(const uint8_t *digests, uint8_t digest) {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi8(static_cast<char>(digest));
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(digests));
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, wanted)));
#else
  uint32_t hits = 0;
  for (unsigned i = 0; i < kDigestStep; ++i) hits |= static_cast<uint32_t>(digests[i] == digest) << i;
  return hits;
#endif
}

// The first digest from `from` on that is this one, or `count`. What is behind `count` up to a whole step is readable.
inline int64_t next_digest(const uint8_t *digests, int64_t from, int64_t count, uint8_t digest) {
  int64_t step = from & ~(kDigestStep - 1);
  if (step >= count) return count;
  uint32_t hits = digest_hits(digests + step, digest) & (~uint32_t{0} << (from - step));
  while (hits == 0) {
    step += kDigestStep;
    if (step >= count) return count;
    hits = digest_hits(digests + step, digest);
  }
  const int64_t at = step + __builtin_ctz(hits);
  return at < count ? at : count;
}

}  // namespace lm

#endif
