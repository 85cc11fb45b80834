// Memory accesses of the fused collectives as PTX, and numbers as bits. The interpreter (interpreter.cuh) uses nothing
// else of the machine, so that tests can run it on threads of a CPU.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(16) Vector {
    u32 x, y, z, w;
};

// Words of a block's program in shared memory; two numbers are behind it.
const u32 kSharedWords = 2048;

__device__ __forceinline__ i64 *shared_words() {
    __shared__ i64 words[kSharedWords + 2];
    return words;
}

// Slots are written by peers: reads go past the first-level cache, which no peer's write reaches.
__device__ __forceinline__ Vector load16(const char *from) {
    Vector v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store16(char *to, Vector v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void load8(const char *from, u32 &x, u32 &y) {
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"(from) : "memory");
}

__device__ __forceinline__ void store8(char *to, u32 x, u32 y) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ u32 load1(const char *from) {
    u32 value;
    asm volatile("ld.global.cg.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store1(char *to, u32 value) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// A packed word carries its own mark; a store of 16 bytes by one thread is seen whole, or at least by halves of 8.
__device__ __forceinline__ Vector load_packed(const char *from) {
    Vector v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_packed(char *to, u32 x, u32 y, u32 mark) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x), "r"(mark), "r"(y), "r"(mark)
                 : "memory");
}

// With a barrier of the block before a release and after an acquire, they hold for what all threads wrote and read.
__device__ __forceinline__ u64 load_acquire(const u64 *from) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_release(u64 *to, u64 value) {
    asm volatile("fence.acq_rel.sys;\n\tst.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ u64 load_plain(const u64 *from) {
    u64 value;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_plain(u64 *to, u64 value) {
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// The value before; across the blocks of this GPU.
__device__ __forceinline__ u64 fetch_add(u64 *at, u64 value) { return atomicAdd(at, value); }

__device__ __forceinline__ u64 now_ns() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

// Elements: how many a word of 32 bits holds, to floats and back (to the nearest, ties to even).
struct Float32 {
    static const int kPerWord = 1;
    static __device__ __forceinline__ void unpack(u32 word, float *to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float *from) { return __float_as_uint(from[0]); }
};

struct Bfloat16 {
    static const int kPerWord = 2;
    static __device__ __forceinline__ void unpack(u32 word, float *to) {
        to[0] = __uint_as_float(word << 16);
        to[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ u32 pack(const float *from) {
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
        return word;
    }
};

struct Float16 {
    static const int kPerWord = 2;
    static __device__ __forceinline__ void unpack(u32 word, float *to) {
        asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
            : "=f"(to[0]), "=f"(to[1])
            : "r"(word));
    }
    static __device__ __forceinline__ u32 pack(const float *from) {
        u32 word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
        return word;
    }
};
