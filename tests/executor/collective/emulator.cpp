// The kernel's own source on threads of a CPU: blocks are groups of threads, device memory is ours.

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct Dim { u32 x; };
struct Team {
    explicit Team(int count) : gate(count) {}
    std::barrier<> gate;
    std::atomic<int> any{0};
    i64 words[2048];
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
static thread_local Team *team;
static thread_local u32 dice = 1;

static void stumble() {
    dice = dice * 1664525u + 1013904223u;
    if ((dice >> 24) < 24) std::this_thread::yield();
}
static void __syncthreads() { team->gate.arrive_and_wait(); }
static bool __syncthreads_or(bool value) {
    if (value) team->any = 1;
    team->gate.arrive_and_wait();
    bool found = team->any;
    team->gate.arrive_and_wait();
    team->any = 0;
    team->gate.arrive_and_wait();
    return found;
}
static void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

const u32 kSharedWords = 384;  // few, so that long programs are read from where they are, too
static i64 *shared_words() { return team->words; }

struct alignas(16) Vector { u32 x, y, z, w; };
// An access of 16 bytes that is not aligned is a fault on a GPU.
static void expect(const void *at, u64 bytes) { if ((u64)at % bytes) std::abort(); }
static Vector load16(const char *from) { expect(from, 16); Vector v; std::memcpy(&v, from, 16); stumble(); return v; }
static void store16(char *to, Vector v) { expect(to, 16); stumble(); std::memcpy(to, &v, 16); }
static void load8(const char *from, u32 &x, u32 &y) {
    expect(from, 8);
    std::memcpy(&x, from, 4);
    std::memcpy(&y, from + 4, 4);
}
static void store8(char *to, u32 x, u32 y) { expect(to, 8); std::memcpy(to, &x, 4); std::memcpy(to + 4, &y, 4); }
static u32 load1(const char *from) { return (unsigned char)*from; }
static void store1(char *to, u32 value) { *to = (char)value; }
// Halves of 8 bytes are whole; the two are seen in any order.
static Vector load_packed(const char *from) {
    expect(from, 16);
    std::this_thread::yield();
    u64 a = ((std::atomic<u64> *)from)->load(), b = ((std::atomic<u64> *)(from + 8))->load();
    return Vector{(u32)a, (u32)(a >> 32), (u32)b, (u32)(b >> 32)};
}
static void store_packed(char *to, u32 x, u32 y, u32 mark) {
    expect(to, 16);
    ((std::atomic<u64> *)(to + 8))->store((u64)mark << 32 | y);
    stumble();
    ((std::atomic<u64> *)to)->store((u64)mark << 32 | x);
}
static u64 load_acquire(const u64 *from) { std::this_thread::yield(); return ((std::atomic<u64> *)from)->load(); }
static void store_release(u64 *to, u64 value) { ((std::atomic<u64> *)to)->store(value); }
static u64 load_plain(const u64 *from) { return ((std::atomic<u64> *)from)->load(); }
static void store_plain(u64 *to, u64 value) { ((std::atomic<u64> *)to)->store(value); }
static u64 fetch_add(u64 *at, u64 value) { return ((std::atomic<u64> *)at)->fetch_add(value); }
static u64 now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

static float as_float(u32 bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static u32 as_bits(float f) { u32 bits; std::memcpy(&bits, &f, 4); return bits; }
struct Float32 {
    static const int kPerWord = 1;
    static void unpack(u32 word, float *to) { to[0] = as_float(word); }
    static u32 pack(const float *from) { return as_bits(from[0]); }
};
struct Bfloat16 {
    static const int kPerWord = 2;
    static void unpack(u32 word, float *to) { to[0] = as_float(word << 16), to[1] = as_float(word & 0xffff0000u); }
    static u32 half(float f) { u32 bits = as_bits(f); return (bits + 0x7fff + (bits >> 16 & 1)) >> 16; }
    static u32 pack(const float *from) { return half(from[0]) | half(from[1]) << 16; }
};
struct Float16 {
    static const int kPerWord = 2;
    static void unpack(u32 word, float *to) {
        _Float16 halves[2];
        std::memcpy(halves, &word, 4);
        to[0] = halves[0], to[1] = halves[1];
    }
    static u32 pack(const float *from) {
        _Float16 halves[2] = {(_Float16)from[0], (_Float16)from[1]};
        u32 word;
        std::memcpy(&word, halves, 4);
        return word;
    }
};

#include "interpreter.cuh"

static void kernel(int variant, const Launch &launch) {
    switch (variant) {
        case 0: return simple_float32(launch);
        case 1: return simple_bfloat16(launch);
        case 2: return simple_float16(launch);
        case 3: return packed_float32(launch);
        case 4: return packed_bfloat16(launch);
        case 5: return packed_float16(launch);
    }
}

extern "C" int launch_bytes() { return sizeof(Launch); }

// launches[rank * calls + call]; streams and variants likewise. A rank with no threads takes no part.
extern "C" void run(int ranks, int calls, int threads, const Launch *launches, const int *streams, const int *variants,
                    const int *absent) {
    std::vector<std::thread> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
        if (absent[rank]) continue;
        of_ranks.emplace_back([=] {
            for (int call = 0; call < calls; ++call) {
                const int at = rank * calls + call;
                const int blocks = streams[at] * launches[at].lanes;
                std::vector<std::unique_ptr<Team>> teams;
                std::vector<std::thread> all;
                for (int b = 0; b < blocks; ++b) teams.push_back(std::make_unique<Team>(threads));
                for (int b = 0; b < blocks; ++b)
                    for (int t = 0; t < threads; ++t)
                        all.emplace_back([&, b, t] {
                            threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = blocks;
                            dice = at * 7919 + b * 104729 + t;
                            team = teams[b].get();
                            kernel(variants[at], launches[at]);
                        });
                for (auto &thread : all) thread.join();
            }
        });
    }
    for (auto &thread : of_ranks) thread.join();
}
