// One block runs one lane of one stream of an instruction table; table.py says what the words mean and why it ends.
//
// Every wait has an end: after timeout_ns a thread gives up, the first to do so on its GPU writes what it waited for to
// failure (pinned host memory), and the block runs through the rest of its stream without moving or telling anything.

const int kMostRanks = 32;
const int kMostStreams = 64;
const int kInlineWords = 384;  // less than fit a block's shared memory
const u64 kOffsetMask = (1ull << 48) - 1;
const int kInput = 0, kArena = 2;  // 1: the output
const int kAlways = 0, kAtStart = 1;  // 2: at the end
const int kWhenBits = 2;  // of a word of counts, above its low half; what is left above is the lag

// Mirrored by kernel.py, field by field.
struct Launch {
    const char *input;
    char *output;
    const i64 *words;        // of all streams; in `held` where they fit
    u64 *state;              // number of the last call, calls made, blocks begun, failures
    volatile i64 *failure;   // set, table, stream, lane, round, word, operand, expected, seen
    u64 timeout_ns;
    u64 flags_offset, flags_bytes;  // in every arena; of one parity
    u64 slots_offset, slots_bytes;
    int rank, lanes, rounds, held_count;
    i64 table;
    u64 arenas[kMostRanks];
    u64 shared[kMostRanks];  // the memory that input or output is in, and that of every rank, as seen from here
    u32 begins[kMostStreams + 2];
    i64 held[kInlineWords];
};

struct Block {
    const Launch &launch;
    const i64 *program;  // word `at` of the stream is program[at - begin]
    int stream, lane, turn;
    u64 number;  // of the last call
    u64 parity;
    u32 mark;
};

__device__ __forceinline__ char *arena_of(const Block &block, int rank) {
    const Launch &launch = block.launch;
    return (char *)launch.arenas[rank] + launch.slots_offset + block.parity * launch.slots_bytes;
}

__device__ __forceinline__ u64 *flag_of(const Block &block, int rank, u32 flag) {
    const Launch &launch = block.launch;
    return (u64 *)(launch.arenas[rank] + launch.flags_offset + block.parity * launch.flags_bytes) + flag + block.lane;
}

__device__ __forceinline__ bool in_arena(i64 place) { return (int)(place >> 56) == kArena; }

__device__ __forceinline__ char *resolve(const Block &block, i64 place) {
    int buffer = (int)(place >> 56);
    u64 offset = (u64)place & kOffsetMask;
    const int rank = (int)(place >> 48) & 255;
    if (buffer == kArena) return arena_of(block, rank) + offset;
    char *own = buffer == kInput ? (char *)block.launch.input : block.launch.output;
    if (rank != block.launch.rank) own += block.launch.shared[rank] - block.launch.shared[block.launch.rank];
    return own + offset;
}

// By value: what a call takes the address of does not stay in registers.
__device__ __noinline__ void write_down(u64 *failures, volatile i64 *failure, i64 table, int stream, int lane, int turn,
                                        u32 word, int operand, u64 expected, u64 seen) {
    if (fetch_add(failures, 1) != 0) return;
    const i64 said[8] = {table, stream, lane, turn, word, operand, (i64)expected, (i64)seen};
    for (int k = 0; k < 8; ++k) failure[k + 1] = said[k];
    __threadfence_system();
    failure[0] = 1;
}

__device__ __forceinline__ void report(const Block &block, u32 word, int operand, u64 expected, u64 seen) {
    const Launch &launch = block.launch;
    write_down(&launch.state[3], launch.failure, launch.table, block.stream, block.lane, block.turn, word, operand,
               expected, seen);
}

// Clock of a wait: tells whether time is up, looked at now and then.
struct Patience {
    u64 begin_ns = 0;
    u32 looks = 0;
    __device__ __forceinline__ bool ended(u64 timeout_ns) {
        if (++looks & 255) return false;
        if (begin_ns == 0) begin_ns = now_ns();
        return now_ns() - begin_ns > timeout_ns;
    }
};

// Bytes [0, valid) of a user's memory as words, and back: where it is not aligned, or at its end.
template <int kCount>
__device__ __forceinline__ void load_bytes(const char *from, int valid, u32 *words) {
#pragma unroll
    for (int w = 0; w < kCount; ++w) {
        words[w] = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b)
            if (4 * w + b < valid) words[w] |= load1(from + 4 * w + b) << (8 * b);
    }
}

template <int kCount>
__device__ __forceinline__ void store_bytes(char *to, int valid, const u32 *words) {
#pragma unroll
    for (int w = 0; w < kCount; ++w)
#pragma unroll
        for (int b = 0; b < 4; ++b)
            if (4 * w + b < valid) store1(to + 4 * w + b, (words[w] >> (8 * b)) & 255);
}

// Units of 16 bytes (simple) or 8 (packed) of the pieces of one operation, summed up and written.
template <class Element, bool kPacked>
struct Mover {
    static const int kWords = kPacked ? 2 : 4;
    static const int kBytes = kWords * 4;
    static const int kValues = kWords * Element::kPerWord;

    const Block &block;
    const i64 *sources;
    const i64 *targets;
    int source_count, target_count;
    u64 bytes;
    u32 word;

    __device__ __forceinline__ int valid(u64 unit) const {
        u64 left = bytes - unit * kBytes;
        return left < kBytes ? (int)left : kBytes;
    }

    // The words of a unit's data; packed ones stand between marks.
    static __device__ __forceinline__ void words_of(const Vector &v, u32 *words) {
        words[0] = v.x;
        words[1] = kPacked ? v.z : v.y;
        words[kWords - 2] = kPacked ? v.x : v.z;
        words[kWords - 1] = kPacked ? v.z : v.w;
    }

    // A whole unit, of a place whose units are aligned.
    static __device__ __forceinline__ Vector fetch(bool slot, const char *from, u64 unit) {
        if (!kPacked) return load16(from + unit * 16);
        if (slot) return load_packed(from + unit * 16);
        Vector v = {0, 0, 0, 0};
        load8(from + unit * 8, v.x, v.z);
        return v;
    }

    static __device__ __forceinline__ void store(bool slot, char *to, u64 unit, const u32 *words, u32 mark) {
        if (!kPacked) {
            store16(to + unit * 16, Vector{words[0], words[1], words[kWords - 2], words[kWords - 1]});
        } else if (slot) {
            store_packed(to + unit * 16, words[0], words[1], mark);
        } else {
            store8(to + unit * 8, words[0], words[1]);
        }
    }

    // Packed: whether both halves carry the mark of this call.
    __device__ __forceinline__ bool arrived(const Vector &v) const { return v.y == block.mark && v.w == block.mark; }

    static __device__ __forceinline__ void add(const u32 *words, bool first, float *total) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            float values[Element::kPerWord];
            Element::unpack(words[w], values);
#pragma unroll
            for (int e = 0; e < Element::kPerWord; ++e) {
                float &sum = total[w * Element::kPerWord + e];
                sum = first ? values[e] : sum + values[e];
            }
        }
    }

    static __device__ __forceinline__ void pack(const float *total, u32 *words) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[w] = Element::pack(total + w * Element::kPerWord);
    }

    // Whole aligned units from `first` to before `last`: kUnits a thread of kSources sources at once, all of them in
    // flight, and again until they are there. kExact: there are just so many sources; 1: a copy. False if a part of
    // them never came.
    template <int kUnits, int kSources, bool kExact>
    __device__ __forceinline__ bool many(u64 first, u64 last) const {
        const u32 step = blockDim.x;
#pragma unroll 1
        for (u64 unit = first + threadIdx.x; unit < last; unit += kUnits * step) {
            const u32 left = last - unit < kUnits * step ? (u32)(last - unit) : kUnits * step;
            float total[kUnits][kValues];
            u32 words[kUnits][kWords];
#pragma unroll 1
            for (int begin = 0; begin < (kExact ? kSources : source_count); begin += kSources) {
                Vector read[kSources][kUnits];
                Patience patience;
                int missing;
                do {
                    missing = -1;
#pragma unroll
                    for (int k = 0; k < kSources; ++k) {
                        if (!kExact && begin + k >= source_count) continue;
                        const bool slot = in_arena(sources[begin + k]);
                        const char *from = resolve(block, sources[begin + k]) + unit * (kPacked && !slot ? 8 : 16);
#pragma unroll
                        for (int u = 0; u < kUnits; ++u)
                            if (u * step < left) read[k][u] = fetch(slot, from, u * step);
                    }
                    if (!kPacked) break;
#pragma unroll
                    for (int k = 0; k < kSources; ++k) {
                        if ((!kExact && begin + k >= source_count) || !in_arena(sources[begin + k])) continue;
#pragma unroll
                        for (int u = 0; u < kUnits; ++u)
                            if (u * step < left && !arrived(read[k][u])) missing = begin + k;
                    }
                    if (missing >= 0 && patience.ended(block.launch.timeout_ns)) {
                        report(block, word, missing, block.mark, 0);
                        return false;
                    }
                } while (missing >= 0);
#pragma unroll
                for (int k = 0; k < kSources; ++k) {
                    if (!kExact && begin + k >= source_count) continue;
#pragma unroll
                    for (int u = 0; u < kUnits; ++u) {
                        words_of(read[k][u], words[u]);
                        if (kSources > 1) add(words[u], begin + k == 0, total[u]);
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < kUnits; ++u)
                if (kSources > 1) pack(total[u], words[u]);
#pragma unroll 1
            for (int t = 0; t < target_count; ++t) {
                const bool slot = in_arena(targets[t]);
                char *to = resolve(block, targets[t]) + unit * (kPacked && !slot ? 8 : 16);
#pragma unroll
                for (int u = 0; u < kUnits; ++u)
                    if (u * step < left) store(slot, to, u * step, words[u], block.mark);
            }
        }
        return true;
    }

    // One unit that is not whole, or not aligned in some user's memory.
    __device__ __forceinline__ bool one(u64 unit) const {
        float total[kValues];
        u32 words[kWords];
        const int left = valid(unit);
#pragma unroll 1
        for (int k = 0; k < source_count; ++k) {
            const char *from = resolve(block, sources[k]);
            if (in_arena(sources[k])) {
                Vector v;
                Patience patience;
                while (v = fetch(true, from, unit), kPacked && !arrived(v)) {
                    if (patience.ended(block.launch.timeout_ns)) {
                        report(block, word, k, block.mark, v.y);
                        return false;
                    }
                }
                words_of(v, words);
            } else {
                load_bytes<kWords>(from + unit * kBytes, left, words);
            }
            if (source_count > 1) add(words, k == 0, total);
        }
        if (source_count > 1) pack(total, words);
#pragma unroll 1
        for (int t = 0; t < target_count; ++t) {
            char *to = resolve(block, targets[t]);
            if (in_arena(targets[t])) {
                store(true, to, unit, words, block.mark);
            } else {
                store_bytes<kWords>(to + unit * kBytes, left, words);
            }
        }
        return true;
    }

    // Out of the way of what is always run; on copies, so that the originals stay in registers.
    static __device__ __noinline__ bool rest(Block block, Mover given, u64 first, u64 last) {
        const Mover mover = {block,      given.sources, given.targets, given.source_count, given.target_count,
                             given.bytes, given.word};
        for (u64 unit = first + threadIdx.x; unit < last; unit += blockDim.x)
            if (!mover.one(unit)) return false;
        return true;
    }

    __device__ __forceinline__ bool run() const {
        // In groups of 8 units: of a lane, of a round, and by how much this lane's rounds end earlier.
        const u64 units = (bytes + kBytes - 1) / kBytes;
        const u32 lanes = block.launch.lanes, others = block.launch.rounds - 1;
        const u32 mine = ((u32)((units + 7) / 8) + lanes - 1) / lanes;
        u32 from = 0, to = mine;
        if (others) {
            const u32 piece = (mine + others - 1) / others, early = piece * block.lane / lanes;
            from = block.turn ? block.turn * piece - early : 0;
            to = (block.turn + 1) * piece - early;
            to = to < mine ? to : mine;
        }
        const u64 begin = 8ull * mine * block.lane;
        u64 first = begin + 8ull * from < units ? begin + 8ull * from : units;
        const u64 last = begin + 8ull * to < units ? begin + 8ull * to : units;
        bool aligned = true;
        for (int k = 0; k < source_count + target_count; ++k) {
            i64 place = k < source_count ? sources[k] : targets[k - source_count];
            if (!in_arena(place) && (u64)resolve(block, place) % kBytes) aligned = false;
        }
        const u64 whole = bytes / kBytes < last ? bytes / kBytes : last;
        if (aligned && first < whole) {
            // As much in flight as registers hold.
            const bool came = source_count == 1   ? many<kPacked ? 4 : 8, 1, true>(first, whole)
                              : source_count == 2 ? many<kPacked ? 2 : 4, 2, true>(first, whole)
                                                  : many<1, 8, false>(first, whole);
            if (!came) return false;
            first = whole;
        }
        return first >= last || rest(block, *this, first, last);
    }
};

template <class Element, bool kPacked>
__device__ __forceinline__ void interpret(const Launch &launch) {
    const int stream = blockIdx.x / launch.lanes;
    const u32 begin = launch.begins[stream];
    const u32 count = launch.begins[stream + 1] - begin;
    const i64 *program = launch.words + begin;
    i64 *shared = shared_words();
    if (threadIdx.x == 0) {
        shared[kSharedWords] = load_plain(&launch.state[0]);
        shared[kSharedWords + 1] = load_plain(&launch.state[1]);
    }
    if (count <= kSharedWords) {
        for (u32 k = threadIdx.x; k < count; k += blockDim.x)
            shared[k] = launch.held_count ? launch.held[begin + k] : program[k];
        program = shared;
    }
    __syncthreads();
    const u64 number = shared[kSharedWords], calls = shared[kSharedWords + 1];
    // The last block that has read the numbers counts on, while the others are at work: nobody else of this call reads
    // them, and the next call begins when this one has ended. What is added is 1, but not before the numbers are there.
    u64 before = 0;
    if (threadIdx.x == 0) before = fetch_add(&launch.state[2], 1 + (number >> 63) + (calls >> 63));
    Block block = {launch, program, stream, (int)(blockIdx.x % launch.lanes), 0, number, calls & 1,
                   (u32)(number + 1) | 0x80000000u};
    bool failed = false;
    int most = 0;  // of the lags of this stream
    for (int level = 0; level < launch.rounds + most; ++level) {
        for (u32 at = 0; at < count;) {
            const u64 bytes = (u64)program[at];
            const i64 counts = program[at + 1];
            const int source_count = counts & 255, target_count = (counts >> 8) & 255;
            const int wait_count = (counts >> 16) & 255, signal_count = (counts >> 24) & 255;
            const int when = (int)(counts >> 32) & ((1 << kWhenBits) - 1), lag = (int)(counts >> (32 + kWhenBits));
            const i64 *sources = program + at + 2;
            const i64 *targets = sources + source_count;
            const i64 *waits = targets + target_count;
            const i64 *signals = waits + wait_count;
            const u32 word = begin + at;
            at += 2 + source_count + target_count + wait_count + signal_count;
            most = lag > most ? lag : most;
            block.turn = level - lag;
            if (block.turn < 0 || block.turn >= launch.rounds) continue;
            if (when != kAlways && (block.lane || block.turn != (when == kAtStart ? 0 : launch.rounds - 1))) continue;
            const u64 expected = number + 1 + (when == kAlways ? block.turn : 0);
            if (wait_count) {
                bool late = failed;
                for (int k = threadIdx.x; k < wait_count && !late; k += blockDim.x) {
                    const u64 *flag = flag_of(block, launch.rank, (u32)waits[k]);
                    Patience patience;
                    u64 seen;
                    while ((seen = load_acquire(flag)) < expected) {
                        if (patience.ended(launch.timeout_ns)) {
                            report(block, word, k, expected, seen);
                            late = true;
                            break;
                        }
                    }
                }
                if (__syncthreads_or(late)) failed = true;
            }
            if (bytes && !failed) {
                Mover<Element, kPacked> mover = {block, sources, targets, source_count, target_count, bytes, word};
                if (!mover.run()) failed = true;
            }
            if (signal_count) {
                __syncthreads();
                // What neither waited nor moved anything has nothing to release but what earlier kernels did.
                const bool begins = !bytes && !wait_count;
                for (int k = threadIdx.x; k < signal_count && !failed; k += blockDim.x) {
                    u64 *flag = flag_of(block, (int)(signals[k] >> 32), (u32)signals[k]);
                    begins ? store_plain(flag, expected) : store_release(flag, expected);
                }
            }
        }
    }
    if (threadIdx.x == 0 && before + 1 == gridDim.x) {
        store_plain(&launch.state[2], 0);
        store_plain(&launch.state[1], calls + 1);
        store_plain(&launch.state[0], number + launch.rounds);
    }
}

#define LOADMASTER_FUSED(name, Element, packed) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Launch launch) { \
        interpret<Element, packed>(launch); \
    }
LOADMASTER_FUSED(simple_float32, Float32, false)
LOADMASTER_FUSED(simple_bfloat16, Bfloat16, false)
LOADMASTER_FUSED(simple_float16, Float16, false)
LOADMASTER_FUSED(packed_float32, Float32, true)
LOADMASTER_FUSED(packed_bfloat16, Bfloat16, true)
LOADMASTER_FUSED(packed_float16, Float16, true)
