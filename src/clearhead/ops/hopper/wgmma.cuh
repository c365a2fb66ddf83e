// Hopper's asynchronous units in CUDA C++: barriers in shared memory, the copy engine (TMA) and tensor cores (wgmma).
//
// NVRTC compiles this file together with a kernel, without any header of the CUDA toolkit.

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr int WARP_GROUP = 128;  // threads that issue a wgmma together
constexpr int PANEL = 64;        // columns of a panel: its rows have 128 bytes, the width of the swizzle
constexpr float LN_2 = 0.6931471805599453f;

// Argument of a generic lambda that is known at compile time.
template <bool CONSTANT>
struct Constant {
    static constexpr bool VALUE = CONSTANT;
};

struct alignas(64) TensorMap {
    u64 words[16];
};

// Tells the compiler that a value is the same in all threads of a warp, so that it uses uniform registers.
__device__ __forceinline__ int uniform(int value) {
    return __shfl_sync(0xFFFFFFFF, value, 0);
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes the initialized barriers visible to the copy engine.
__device__ __forceinline__ void fence_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Position in a ring of buffers.
template <int SIZE>
struct Ring {
    int stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        stage = stage + 1 == SIZE ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// Loads a box of a [batch, heads, rows, columns] tensor; rows beyond the last are 0.
__device__ __forceinline__ void load_box(
    u32 target, const TensorMap* map, u32 barrier, int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(target),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// Loads four 8 × 8 matrices for tensor cores; thread i has the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(u32 (&registers)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
}

// Changes the number of registers of each thread of a warp group; the sum over a block must not grow.
template <int COUNT>
__device__ __forceinline__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Describes a panel for wgmma: rows of 128 bytes, swizzled, 8 rows every 1,024 bytes.
__device__ __forceinline__ u64 panel_descriptor(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Describes panels side by side, read as columns: 64 columns every `stride` bytes, 8 rows every 1,024 bytes.
__device__ __forceinline__ u64 transposed_panels(u32 address, u32 stride) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)(stride >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

__device__ __forceinline__ void start_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

__device__ __forceinline__ float log2_fast(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Rounds two numbers to half precision; the first one is in the lower bits.
__device__ __forceinline__ u32 packed(float low, float high) {
    u32 result;
    asm("cvt.rn." DTYPE "x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

__device__ __forceinline__ void store_16_bytes(void* pointer, const u32 (&words)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ void add_to_memory(float* pointer, float value) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(pointer), "f"(value) : "memory");
}

#define OPERANDS_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define OPERANDS_32(d) OPERANDS_8(d, 0), OPERANDS_8(d, 8), OPERANDS_8(d, 16), OPERANDS_8(d, 24)
#define OPERANDS_64(d) \
    OPERANDS_32(d), OPERANDS_8(d, 32), OPERANDS_8(d, 40), OPERANDS_8(d, 48), OPERANDS_8(d, 56)
// Stops the compiler from moving uses of an accumulator over a wait, on which its registers do not depend otherwise.
template <int COUNT>
__device__ __forceinline__ void keep_order(float (&accumulator)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(accumulator[i])::"memory");
}

#define REGISTERS_64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// accumulator [64, 128] (+)= left [64, 16] · right [128, 16]ᵀ, both in shared memory; ADD = 0 starts from 0.
template <int ADD>
__device__ __forceinline__ void multiply_64x128(float (&accumulator)[64], u64 left, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." DTYPE "." DTYPE " " REGISTERS_64 ", %64, %65, %66, 1, 1, 0, 0;"
        : OPERANDS_64(accumulator)
        : "l"(left), "l"(right), "n"(ADD));
}

// The same with `left` in registers.
template <int ADD>
__device__ __forceinline__ void multiply_64x128(float (&accumulator)[64], const u32 (&left)[4], u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." DTYPE "." DTYPE " " REGISTERS_64
        ", {%64, %65, %66, %67}, %68, %69, 1, 1, 0;"
        : OPERANDS_64(accumulator)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(ADD));
}

#define REGISTERS_32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31}"

// accumulator [64, 128] += left [64, 16] · right [16, 128]; left in registers, right in `transposed_panels`.
__device__ __forceinline__ void multiply_rows(
    float (&accumulator)[64], const u32& a, const u32& b, const u32& c, const u32& d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." DTYPE "." DTYPE " " REGISTERS_64
        ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : OPERANDS_64(accumulator)
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}

// The same for 64 columns.
__device__ __forceinline__ void multiply_rows(
    float (&accumulator)[32], const u32& a, const u32& b, const u32& c, const u32& d, u64 right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." DTYPE "." DTYPE " " REGISTERS_32
        ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : OPERANDS_32(accumulator)
        : "r"(a), "r"(b), "r"(c), "r"(d), "l"(right));
}
