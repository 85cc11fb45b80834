/* The C interface of the index: 64-bit keys to 64-bit payloads. Python calls it through ctypes.
 *
 * Arrays belong to the caller and are contiguous. A call gives 0, or why it failed; then the index is as it was before
 * the call, or, where `done` is given, as it was after that many operations of the batch. Any number of threads may call
 * functions that take a `const lm_index *` while one thread calls another one; lm_dump alone must not meet a writer,
 * whose keys might not fit its arrays. No function throws or prints. */
#ifndef LOADMASTER_INDEX_H
#define LOADMASTER_INDEX_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum lm_structure { LM_GAPPED = 0, LM_FLOG = 1, LM_SORTED = 2, LM_HASH = 3 };
enum lm_status { LM_OK = 0, LM_NO_MEMORY = 1, LM_OVER_LIMIT = 2, LM_UNSORTED = 3, LM_DUPLICATE = 4,
                 LM_NO_ORDER = 5, LM_READ_ONLY = 6, LM_BAD_CONFIG = 7 };

typedef struct lm_config {
    int32_t structure;            /* enum lm_structure, of new leaves */
    double most_searches;         /* gapped: Msi, average exponential search iterations; 0: what the cost model expects */
    double most_shifts;           /* gapped: Msh, average shifts of an insert; 0: what the cost model expects */
    double insert_share;          /* gapped: expected share of inserts, 0 to 1 */
    int32_t fragment_keys;        /* flog: mf, most keys of a fragment, 4 to 4096 */
    int32_t most_fragments;       /* flog: Mnf, most fragments of a node */
    int32_t first_fragments;      /* flog: nf, fragments of a new node */
    int64_t most_bytes;           /* of the whole index; 0: no limit */
} lm_config;

typedef struct lm_facts {
    int64_t keys, bytes, leaves, fragments, depth;
    int64_t structural_changes;   /* expansions of nodes, splits, rebuilds since it was made (not of one fragment) */
    int64_t longest_change_ns;    /* of them */
    int64_t largest_change_keys;  /* keys that the largest of them moved */
    int64_t huge_page_bytes;      /* of `bytes`, asked for as huge pages and granted by the system (an estimate) */
    int64_t lookups, inserts, erases, scans; /* operations since it was made, counted per batch */
    int64_t leaves_of[4];         /* leaves by structure */
} lm_facts;

typedef struct lm_index lm_index;

int lm_check_config(const lm_config *config);
/* Bulk load of `count` pairs, keys ascending without duplicates. */
int lm_create(const lm_config *config, const uint64_t *keys, const uint64_t *payloads, int64_t count, lm_index **made);
void lm_destroy(lm_index *index);
/* found[i] 0 or 1; a payload that is not found is 0. Prefetches within the batch. */
int lm_lookup(const lm_index *index, const uint64_t *keys, int64_t count, uint64_t *payloads, uint8_t *found);
/* upsert 0: keys that are there stay as they are and present[i] is 1; 1: their payload is replaced (present[i] 1 too). */
int lm_insert(lm_index *index, const uint64_t *keys, const uint64_t *payloads, int64_t count, int upsert,
              uint8_t *present, int64_t *done);
int lm_erase(lm_index *index, const uint64_t *keys, int64_t count, uint8_t *found, int64_t *done);
/* Up to `most` pairs with first <= key <= last, ascending. LM_NO_ORDER for LM_HASH. Beside a writer, each slice of up
 * to 256 pairs is of one moment, the whole is not. */
int lm_range(const lm_index *index, uint64_t first, uint64_t last, int64_t most, uint64_t *keys, uint64_t *payloads,
             int64_t *count);
/* All pairs, ascending (sorted for LM_HASH too); arrays for lm_facts.keys pairs. */
int lm_dump(const lm_index *index, uint64_t *keys, uint64_t *payloads);
/* New configuration for new leaves and, for up to most_leaves of the old ones, now: gapped and flog only (LM_BAD_CONFIG
 * otherwise). `left` is how many leaves are still as before. Where memory fails in between, the configuration is the
 * new one and the leaves that were not rebuilt yet are as before. */
int lm_reconfigure(lm_index *index, const lm_config *config, int64_t most_leaves, int64_t *left);
int lm_facts_of(const lm_index *index, lm_facts *facts);
/* Test only: the n-th allocation from now fails (0: none). */
void lm_fail_allocation(int64_t n);
#ifdef __cplusplus
}
#endif
#endif
