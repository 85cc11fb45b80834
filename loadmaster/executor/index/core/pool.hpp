// The memory pool of one index: every byte of the index comes from here and is counted as it is taken from the system.
// Blocks are kept in lists by size in two levels (good fit in constant time) and merge with their free neighbours.
// Chunks grow with the index; those of 2 MiB and more ask for huge pages; a chunk that is empty goes back. Where few blocks
// keep many chunks, the chunks are retired: new blocks come from new ones, and the owner moves out what is in the old ones.
#ifndef LOADMASTER_INDEX_POOL_HPP
#define LOADMASTER_INDEX_POOL_HPP

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "index.h"

namespace lm {

// Counts down to the allocation that fails in a test; 0 when none does.
inline std::atomic<int64_t> allocations_to_failure{0};

inline bool allocation_fails() {
  if (allocations_to_failure.load(std::memory_order_relaxed) <= 0) return false;
  return allocations_to_failure.fetch_sub(1, std::memory_order_relaxed) == 1;
}

// Returns whether the system may give huge pages to a region that asks for them.
inline bool huge_pages_granted() {
  static const bool granted = [] {
    char line[128] = {0};
    std::FILE *file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file == nullptr) return false;
    const bool read = std::fgets(line, sizeof line, file) != nullptr;
    std::fclose(file);
    return read && std::strstr(line, "[never]") == nullptr;
  }();
  return granted;
}

class Pool {
 public:
  Pool() = default;
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;
  ~Pool() {
    while (chunks_ != nullptr) unmap(chunks_);
  }

  int64_t bytes() const { return bytes_; }
  int64_t huge_page_bytes() const { return huge_bytes_; }
  int64_t most_bytes() const { return most_bytes_; }
  void set_most_bytes(int64_t bytes) { most_bytes_ = bytes; }
  // Why the last `take` failed.
  int failure() const { return failure_; }

  // True if most of the memory holds nothing, so that it pays to retire it.
  bool is_sparse() const { return bytes_ > kSparse && 3 * used_bytes_ < bytes_; }
  // Chunks that were retired before and still hold something stay retired together with none of the present ones.
  void retire() {
    if (chunk_bytes_[1 - now_] != 0) return;
    if (lists_[now_].spare != nullptr) {
      unlink(first_block(lists_[now_].spare));
      unmap(lists_[now_].spare);
      lists_[now_].spare = nullptr;
    }
    now_ = 1 - now_;
  }
  // True if the memory is in a retired chunk, which it keeps from going back.
  bool is_retired(const void *memory) const {
    const Block *block = reinterpret_cast<const Block *>(static_cast<const char *>(memory) - kHead);
    return side_of(block) != now_ && size_of(block) < kAlone;
  }

  // 16-byte aligned memory that is not set to anything, or null.
  void *take(size_t bytes) {
    failure_ = LM_NO_MEMORY;
    if (allocation_fails()) return nullptr;
    const size_t need = bytes + kHead <= kLeast ? kLeast : (bytes + kHead + 15) & ~size_t{15};
    if (need >= kAlone) return take_alone(need);
    Block *block = find(need, now_);
    if (block == nullptr) {
      // `find` rounds up to the next list: room for that, too.
      Chunk *chunk = map_chunk(need + need / 16 + kLeast, growth());
      if (chunk != nullptr) {
        block = first_block(chunk);
        link(block);
      } else {
        block = find(need, 1 - now_);
        if (block == nullptr) return nullptr;
      }
    }
    unlink(block);
    Lists &lists = lists_[side_of(block)];
    if (lists.spare != nullptr && block == first_block(lists.spare)) lists.spare = nullptr;
    const size_t size = size_of(block);
    if (size - need >= kLeast) {
      set_size(block, need);
      Block *rest = after(block);
      rest->head = (size - need) | (block->head & kSide);
      link(rest);
    } else {
      after(block)->head &= ~kBeforeFree;
    }
    block->head &= ~kFree;
    used_bytes_ += static_cast<int64_t>(size_of(block));
    return &block->next;
  }

  template <typename T>
  T *take_array(size_t count) {
    return static_cast<T *>(take(count * sizeof(T)));
  }

  void give(void *memory) {
    if (memory == nullptr) return;
    Block *block = reinterpret_cast<Block *>(static_cast<char *>(memory) - kHead);
    used_bytes_ -= static_cast<int64_t>(size_of(block));
    Block *next = after(block);
    if (next->head & kFree) {
      unlink(next);
      set_size(block, size_of(block) + size_of(next));
    }
    if (block->head & kBeforeFree) {
      const size_t before = *reinterpret_cast<size_t *>(reinterpret_cast<char *>(block) - kHead);
      Block *merged = reinterpret_cast<Block *>(reinterpret_cast<char *>(block) - before);
      unlink(merged);
      set_size(merged, before + size_of(block));
      block = merged;
    }
    if ((block->head & kFirst) && size_of(after(block)) == 0) {
      Chunk *chunk = reinterpret_cast<Chunk *>(reinterpret_cast<char *>(block) - sizeof(Chunk));
      // One empty chunk is kept, so that a block taken and given in turn does not map memory each time.
      Lists &lists = lists_[side_of(block)];
      if (chunk->alone || side_of(block) != now_ || lists.spare != nullptr ||
          static_cast<int64_t>(chunk->bytes) * 8 > bytes_) {
        unmap(chunk);
        return;
      }
      lists.spare = chunk;
    }
    link(block);
  }

 private:
  struct Block {
    size_t head;  // bytes of the block, a multiple of 16, and the flags below
    Block *next, *prev;  // of the same list, while free; here the memory of a block in use begins
  };
  struct Chunk {
    size_t bytes, huge;
    Chunk *next, *prev;
    size_t alone;  // 1: for one large block, with which it goes back
  };
  static constexpr size_t kFree = 1, kBeforeFree = 2, kFirst = 4, kSide = 8, kFlags = 15;
  static constexpr size_t kHead = sizeof(size_t), kLeast = 32, kHuge = size_t{2} << 20, kPage = 4096, kAlone = size_t{1} << 20;
  static constexpr int kLists = 48, kParts = 16;
  static constexpr int64_t kSparse = 65536;  // smaller pools stay as they are
  static_assert(sizeof(Chunk) == 40, "the first block's memory is 16-byte aligned");

  // Free blocks by size. There are two of them: of the chunks that are in use, and of those that are retired.
  struct Lists {
    uint64_t lists = 0;
    uint32_t parts[kLists] = {};
    Block *free[kLists][kParts] = {};
    Chunk *spare = nullptr;
  };

  static int side_of(const Block *block) { return (block->head & kSide) != 0; }
  static size_t size_of(const Block *block) { return block->head & ~kFlags; }
  static void set_size(Block *block, size_t size) { block->head = size | (block->head & kFlags); }
  static Block *after(Block *block) {
    return reinterpret_cast<Block *>(reinterpret_cast<char *>(block) + size_of(block));
  }
  static Block *first_block(Chunk *chunk) { return reinterpret_cast<Block *>(chunk + 1); }

  static void place(size_t size, int *list, int *part) {
    if (size < 256) {
      *list = 0;
      *part = static_cast<int>(size / 16);
    } else {
      const int bits = 63 - __builtin_clzll(size);
      *list = bits - 7;
      *part = static_cast<int>(size >> (bits - 4)) & (kParts - 1);
    }
  }

  // A free block of at least `need` bytes: the first of the first list whose blocks are all large enough.
  Block *find(size_t need, int side) {
    const Lists &from = lists_[side];
    size_t rounded = need;
    if (need >= 256) rounded += (size_t{1} << (59 - __builtin_clzll(need))) - 1;
    int list, part;
    place(rounded, &list, &part);
    uint32_t parts = from.parts[list] & (~uint32_t{0} << part);
    if (parts == 0) {
      const uint64_t lists = from.lists & (~uint64_t{0} << (list + 1));
      if (lists == 0) return nullptr;
      list = __builtin_ctzll(lists);
      parts = from.parts[list];
    }
    return from.free[list][__builtin_ctz(parts)];
  }

  void link(Block *block) {
    const size_t size = size_of(block);
    int list, part;
    place(size, &list, &part);
    Lists &to = lists_[side_of(block)];
    block->head |= kFree;
    block->prev = nullptr;
    block->next = to.free[list][part];
    if (block->next != nullptr) block->next->prev = block;
    to.free[list][part] = block;
    to.lists |= uint64_t{1} << list;
    to.parts[list] |= uint32_t{1} << part;
    Block *next = after(block);
    next->head |= kBeforeFree;
    *reinterpret_cast<size_t *>(reinterpret_cast<char *>(next) - kHead) = size;
  }

  void unlink(Block *block) {
    int list, part;
    place(size_of(block), &list, &part);
    if (block->next != nullptr) block->next->prev = block->prev;
    if (block->prev != nullptr) {
      block->prev->next = block->next;
    } else {
      Lists &from = lists_[side_of(block)];
      from.free[list][part] = block->next;
      if (block->next == nullptr) {
        from.parts[list] &= ~(uint32_t{1} << part);
        if (from.parts[list] == 0) from.lists &= ~(uint64_t{1} << list);
      }
    }
  }

  // Chunks are a sixteenth of what is in use, whole huge pages as soon as it has a few megabytes.
  size_t growth() const {
    const size_t now = static_cast<size_t>(used_bytes_);
    size_t wanted = now / 16;
    if (wanted < kHuge && now >= 4 * kHuge) wanted = kHuge;
    if (wanted > 16 * kHuge) wanted = 16 * kHuge;
    return wanted < 4 * kPage ? 4 * kPage : wanted;
  }

  static size_t whole_pages(size_t bytes) {
    return bytes >= kHuge ? (bytes + kHuge - 1) & ~(kHuge - 1) : (bytes + kPage - 1) & ~(kPage - 1);
  }

  // A block that has a chunk to itself.
  void *take_alone(size_t need) {
    Chunk *chunk = map_chunk(need, 0);
    if (chunk == nullptr) return nullptr;
    chunk->alone = 1;
    chunk_bytes_[now_] -= static_cast<int64_t>(chunk->bytes);
    used_bytes_ += static_cast<int64_t>(size_of(first_block(chunk)));
    return &first_block(chunk)->next;
  }

  // A chunk with one block of at least `need` bytes, or null. It is larger, as `wanted` says, where the limit allows.
  Chunk *map_chunk(size_t need, size_t wanted) {
    const size_t least = (need + sizeof(Chunk) + kHead + kPage - 1) & ~(kPage - 1);
    size_t bytes = least > wanted ? least : whole_pages(wanted);
    if (most_bytes_ > 0 && bytes_ + static_cast<int64_t>(bytes) > most_bytes_) {
      bytes = least;
      if (bytes_ + static_cast<int64_t>(bytes) > most_bytes_) {
        failure_ = LM_OVER_LIMIT;
        return nullptr;
      }
    }
    const size_t slack = bytes >= kHuge ? kHuge : 0;
    void *mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char *start = static_cast<char *>(mapped);
    if (slack != 0) {
      char *aligned = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(start) + kHuge - 1) & ~(kHuge - 1));
      if (aligned > start) munmap(start, static_cast<size_t>(aligned - start));
      if (aligned < start + slack) munmap(aligned + bytes, static_cast<size_t>(start + slack - aligned));
      start = aligned;
    }
    size_t huge = 0;
#ifdef MADV_HUGEPAGE
    if (bytes >= kHuge && madvise(start, bytes, MADV_HUGEPAGE) == 0 && huge_pages_granted()) huge = bytes & ~(kHuge - 1);
#endif
    Chunk *chunk = reinterpret_cast<Chunk *>(start);
    *chunk = Chunk{bytes, huge, chunks_, nullptr, 0};
    if (chunks_ != nullptr) chunks_->prev = chunk;
    chunks_ = chunk;
    bytes_ += static_cast<int64_t>(bytes);
    chunk_bytes_[now_] += static_cast<int64_t>(bytes);
    huge_bytes_ += static_cast<int64_t>(huge);
    Block *block = first_block(chunk);
    block->head = (bytes - sizeof(Chunk) - kHead) | kFirst | (now_ == 0 ? 0 : kSide);
    after(block)->head = 0;
    return chunk;
  }

  void unmap(Chunk *chunk) {
    if (chunk->next != nullptr) chunk->next->prev = chunk->prev;
    if (chunk->prev != nullptr) chunk->prev->next = chunk->next;
    else chunks_ = chunk->next;
    bytes_ -= static_cast<int64_t>(chunk->bytes);
    if (chunk->alone == 0) chunk_bytes_[side_of(first_block(chunk))] -= static_cast<int64_t>(chunk->bytes);
    huge_bytes_ -= static_cast<int64_t>(chunk->huge);
    munmap(chunk, chunk->bytes);
  }

  Chunk *chunks_ = nullptr;
  int64_t bytes_ = 0, huge_bytes_ = 0, most_bytes_ = 0, used_bytes_ = 0;
  int64_t chunk_bytes_[2] = {};  // of the two sides, without the chunks of one large block
  int failure_ = LM_OK;
  int now_ = 0;  // the side that new blocks come from
  Lists lists_[2];
};

}  // namespace lm

#endif
