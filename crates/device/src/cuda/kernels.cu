// The kernels of a CUDA device: folding the ranks' contributions, in place or to other places, copying, and Adasum.
//
// The crate carries these kernels as PTX: `kernels.ptx` beside this file is made of it by `cargo xtask kernels`, and is
// committed. So no compiler is needed at run time, which Rust programs would not have; the driver compiles the PTX for
// its device once and caches the result.
//
// Invariant: a fold gives bit for bit what `farandole-tensor` gives on a processor. Contributions are combined in the
// order of ranks, in the precision that `reduce.rs` there names, and scaled as its `finish.rs` says; halves are widened
// when they are loaded and rounded once at the end; every NaN is stored as the canonical one. Multiplications and
// additions are written as functions that are never contracted.
//
// Nothing here waits, synchronises or allocates: whoever launches a kernel has seen to it that contributions are
// complete and that nobody else works on them. No load assumes that memory stays as it is (`ld.global.nc`), because
// results replace contributions. Average is a sum with a finish, of bool a minimum.
//
// How a launch is described. A kernel works on `count` *segments*, each of them elements that lie one behind another.
// It has THREADS threads a block; a block works on BLOCK_BYTES of one segment (of each rank's contribution), the last
// block of a segment on the rest, and the grid has as many blocks as all segments need. The table holds a *row* for
// each segment, of ranks + targets + 2 words for a fold:
//
//   0               the first block of the segment, which is the number of blocks of all segments before it
//   1               its elements
//   2 + r           where the contribution of rank r lies in device memory
//   2 + ranks + t   where the result goes; without targets it goes where the contributions lie
//
// and of 4 words for a copy: first block, bytes, source, target. Adasum has rows and blocks of its own (see there).
// Contributions of different ranks do not overlap, and a
// target overlaps one only if it is that contribution. Each is aligned to its element; only where all are aligned to 16
// bytes is a segment fast.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

// Threads of a block. Enough to fill a multiprocessor with few blocks, and few enough for any number of registers.
// Enumerators all, because the compiler makes variables of other constants.
enum : u32 { THREADS = 256 };
// Bytes of one contribution that a block works on: eight vectors for each thread, so that looking up the segment costs
// little beside them, and a few megabytes still give every multiprocessor something to do.
enum : u32 { BLOCK_BYTES = 32 * 1024 };
// With the other parameters the table stays below the 4096 bytes that a launch may pass.
enum : u32 { TABLE_WORDS = 496 };

// What is done to a result before it is stored: the values of the parameter `finish`, besides zero for nothing.
enum : u32 { FINISH_MULTIPLY = 1, FINISH_DIVIDE = 2 };

struct Table {
    u64 words[TABLE_WORDS];
};

#define METHOD __device__ __forceinline__
#define DEVICE static METHOD

// ---- Instructions that C++ has no words for -----------------------------------------------------

DEVICE float widen_f16(u16 half) {
    float single;
    asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(half));
    return single;
}

DEVICE u16 narrow_f16(float single) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(single));
    return half;
}

// The same number, of which the compiler knows nothing: it cannot make one loop for each value.
DEVICE double opaque(double number) {
    asm volatile("" : "+d"(number));
    return number;
}

DEVICE u32 opaque(u32 number) {
    asm volatile("" : "+r"(number));
    return number;
}

// Loads before this stay before it: the compiler would delay each of them until its data is used.
DEVICE void begin_loads() {
    asm volatile("" ::: "memory");
}

// A pointer to device memory. That the address is a global one is said for the compiler, which takes any kind of memory
// into account otherwise.
template <class T> DEVICE T *global(u64 address) {
    return static_cast<T *>(__cvta_global_to_generic(address));
}

// ---- Element types ------------------------------------------------------------------------------
//
// Bits is an element as it lies in memory, Number the form in which it is folded. Integers of fewer than 32 bits are
// folded in 32: sums and products are cut off when they are stored, which is the same as wrapping at every step.

enum Kind { BOOL, INTEGER, FLOAT };

// An integer T. Unsigned is a Number that wraps.
template <class T, class B, class N, class Unsigned> struct Integer {
    using Bits = B;
    using Number = N;
    enum { KIND = INTEGER, IS_SIGNED = T(-1) < T(0), VALUE_BITS = 8 * sizeof(T) - (IS_SIGNED ? 1 : 0) };

    DEVICE Number zero() { return 0; }
    DEVICE Number one() { return 1; }
    DEVICE Number largest() { return Number(~u64(0) >> (64 - VALUE_BITS)); }
    DEVICE Number smallest() { return IS_SIGNED ? Number(-largest() - 1) : Number(0); }
    DEVICE Number widen(Bits bits) { return Number(T(bits)); }
    DEVICE Bits narrow(Number number) { return Bits(number); }
    DEVICE Number add(Number a, Number b) { return Number(Unsigned(a) + Unsigned(b)); }
    DEVICE Number multiply(Number a, Number b) { return Number(Unsigned(a) * Unsigned(b)); }
    DEVICE Number smaller(Number a, Number b) { return a < b ? a : b; }
    DEVICE Number larger(Number a, Number b) { return a > b ? a : b; }
};

// A byte that counts as one unless it is zero. It is never scaled.
struct Bool {
    using Bits = u8;
    using Number = u32;
    enum { KIND = BOOL };

    DEVICE Number zero() { return 0; }
    DEVICE Number one() { return 1; }
    DEVICE Number largest() { return 1; }
    DEVICE Number smallest() { return 0; }
    DEVICE Number widen(Bits bits) { return bits != 0; }
    DEVICE Bits narrow(Number number) { return Bits(number); }
    DEVICE Number add(Number a, Number b) { return a | b; }
    DEVICE Number multiply(Number a, Number b) { return a & b; }
    DEVICE Number smaller(Number a, Number b) { return a & b; }
    DEVICE Number larger(Number a, Number b) { return a | b; }
};

// Single precision, in which halves are folded too.
struct Single {
    using Number = float;
    enum { KIND = FLOAT };

    // Added to -0, every number stays what it is; added to +0, -0 does not.
    DEVICE Number zero() { return -0.0f; }
    DEVICE Number one() { return 1.0f; }
    DEVICE Number largest() { return __uint_as_float(0x7f800000); }
    DEVICE Number smallest() { return __uint_as_float(0xff800000); }
    DEVICE Number factor(double factor) { return __double2float_rn(factor); }
    DEVICE Number add(Number a, Number b) { return __fadd_rn(a, b); }
    DEVICE Number multiply(Number a, Number b) { return __fmul_rn(a, b); }
    // Equal numbers have equal bits unless they are zeros: the smaller zero is -0, the larger +0. NaN prevails.
    DEVICE Number smaller(Number a, Number b) {
        const Number equal = __uint_as_float(__float_as_uint(a) | __float_as_uint(b));
        const Number ordered = a == b ? equal : a < b ? a : b;
        return a != a ? a : ordered;
    }
    DEVICE Number larger(Number a, Number b) {
        const Number equal = __uint_as_float(__float_as_uint(a) & __float_as_uint(b));
        const Number ordered = a == b ? equal : a > b ? a : b;
        return a != a ? a : ordered;
    }
};

struct F32 : Single {
    using Bits = u32;
    DEVICE Number widen(Bits bits) { return __uint_as_float(bits); }
    DEVICE Bits narrow(Number number) { return number != number ? 0x7fc00000u : __float_as_uint(number); }
};

struct F16 : Single {
    using Bits = u16;
    DEVICE Number widen(Bits bits) { return widen_f16(bits); }
    DEVICE Bits narrow(Number number) { return number != number ? Bits(0x7e00) : narrow_f16(number); }
};

struct BF16 : Single {
    using Bits = u16;
    DEVICE Number widen(Bits bits) { return __uint_as_float(u32(bits) << 16); }
    DEVICE Bits narrow(Number number) {
        const u32 bits = __float_as_uint(number), odd = (bits >> 16) & 1;
        return number != number ? Bits(0x7fc0) : Bits((bits + 0x7fff + odd) >> 16);
    }
};

struct F64 {
    using Bits = u64;
    using Number = double;
    enum { KIND = FLOAT };

    DEVICE Number zero() { return -0.0; }
    DEVICE Number one() { return 1.0; }
    DEVICE Number largest() { return __longlong_as_double(0x7ff0000000000000); }
    DEVICE Number smallest() { return -largest(); }
    DEVICE Number factor(double factor) { return factor; }
    DEVICE Number widen(Bits bits) { return __longlong_as_double(i64(bits)); }
    DEVICE Bits narrow(Number number) {
        return number != number ? 0x7ff8000000000000ull : u64(__double_as_longlong(number));
    }
    DEVICE Number add(Number a, Number b) { return __dadd_rn(a, b); }
    DEVICE Number multiply(Number a, Number b) { return __dmul_rn(a, b); }
    DEVICE Number smaller(Number a, Number b) {
        const Number equal = __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
        const Number ordered = a == b ? equal : a < b ? a : b;
        return a != a ? a : ordered;
    }
    DEVICE Number larger(Number a, Number b) {
        const Number equal = __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
        const Number ordered = a == b ? equal : a > b ? a : b;
        return a != a ? a : ordered;
    }
};

using U8 = Integer<u8, u8, u32, u32>;
using I8 = Integer<i8, u8, i32, u32>;
using U16 = Integer<u16, u16, u32, u32>;
using I16 = Integer<i16, u16, i32, u32>;
using U32 = Integer<u32, u32, u32, u32>;
using I32 = Integer<i32, u32, i32, u32>;
using U64 = Integer<u64, u64, u64, u64>;
using I64 = Integer<i64, u64, i64, u64>;

// ---- Operations ---------------------------------------------------------------------------------

#define OPERATION(NAME, FUNCTION, NEUTRAL) \
    template <class E> struct NAME { \
        using Number = typename E::Number; \
        DEVICE Number neutral() { return E::NEUTRAL(); } \
        DEVICE Number apply(Number a, Number b) { return E::FUNCTION(a, b); } \
    }
OPERATION(Sum, add, zero);
OPERATION(Product, multiply, one);
OPERATION(Min, smaller, largest);
OPERATION(Max, larger, smallest);

// ---- Scaling ------------------------------------------------------------------------------------
//
// A scaling changes contributions when they are loaded (`before`) and the result before it is stored (`after`).

// Bool, and integers as they are.
template <class E> struct Unscaled {
    using Number = typename E::Number;
    METHOD Number before(Number number) const { return number; }
    METHOD Number after(Number number) const { return number; }
};

// Floats without a prescale. Multiplying by one changes nothing and costs less than asking.
template <class E> struct FloatFinish {
    using Number = typename E::Number;
    Number factor;

    METHOD FloatFinish(u32 finish, double factor)
        : factor(finish == FINISH_MULTIPLY ? E::factor(factor) : Number(1)) {}
    METHOD Number before(Number number) const { return number; }
    METHOD Number after(Number number) const { return E::multiply(number, factor); }
};

// Floats.
template <class E> struct FloatScaling : FloatFinish<E> {
    using Number = typename E::Number;
    Number prescale;

    METHOD FloatScaling(double prescale, u32 finish, double factor)
        : FloatFinish<E>(finish, factor), prescale(E::factor(prescale)) {}
    METHOD Number before(Number number) const { return E::multiply(number, prescale); }
};

// Integers.
template <class E> struct IntegerScaling {
    using Number = typename E::Number;
    double prescale, factor;
    u32 finish;
    // The divisor d, and (2^64 - 1) / d. The upper half of x times that is x / d or one less.
    u64 divisor, inverse;

    METHOD IntegerScaling(double prescale, u32 finish, double factor, u64 divisor)
        : prescale(prescale), factor(factor), finish(finish), divisor(divisor), inverse(0) {
        if (finish == FINISH_DIVIDE) inverse = ~u64(0) / divisor;
    }
    METHOD Number before(Number number) const {
        const double by = opaque(prescale);
        return by == 1.0 ? number : scaled(number, by);
    }
    METHOD Number after(Number number) const {
        // What is finished has wrapped to its type.
        const Number wrapped = E::widen(E::narrow(number));
        const u32 way = opaque(finish);
        if (way == FINISH_MULTIPLY) return scaled(wrapped, factor);
        return way == FINISH_DIVIDE ? divided(wrapped) : wrapped;
    }

    // Multiplied in double precision, cut off towards zero and held in range. NaN becomes zero.
    DEVICE Number scaled(Number number, double factor) {
        // The first number above the range, which a double holds, unlike the largest within.
        const double beyond = 2.0 * double(u64(1) << (E::VALUE_BITS - 1));
        const double product = __dmul_rn(double(number), factor);
        if (product >= beyond) return E::largest();
        if (product > double(E::smallest())) return Number(product);
        return product != product ? Number(0) : E::smallest();
    }

    // Divided exactly, cut off towards zero. The magnitude of the smallest integer wraps to the right answer.
    METHOD Number divided(Number number) const {
        const bool is_negative = E::IS_SIGNED && i64(number) < 0;
        const u64 magnitude = is_negative ? u64(0) - u64(number) : u64(number);
        u64 quotient = __umul64hi(magnitude, inverse);
        if (magnitude - quotient * divisor >= divisor) quotient++;
        return Number(is_negative ? u64(0) - quotient : quotient);
    }
};

// ---- Pieces: what a thread loads at once --------------------------------------------------------

// One element.
template <class E> struct One {
    using Memory = typename E::Bits;
    enum : u32 { LANES = 1 };
    DEVICE typename E::Bits get(Memory memory, u32) { return memory; }
    DEVICE void put(Memory &memory, u32, typename E::Bits bits) { memory = bits; }
};

// The elements of 16 bytes. Lanes are constants once loops are unrolled.
template <class E> struct Vector {
    using Memory = uint4;
    using Bits = typename E::Bits;
    enum : u32 { SIZE = sizeof(Bits), LANES = 16 / SIZE };

    DEVICE Bits get(const Memory &memory, u32 lane) {
        const u32 words[4] = {memory.x, memory.y, memory.z, memory.w};
        if constexpr (SIZE == 8) {
            return words[2 * lane] | u64(words[2 * lane + 1]) << 32;
        } else {
            return Bits(words[lane * SIZE / 4] >> (8 * (lane * SIZE % 4)));
        }
    }

    // Puts an element where zeros are.
    DEVICE void put(Memory &memory, u32 lane, Bits bits) {
        u32 *const words[4] = {&memory.x, &memory.y, &memory.z, &memory.w};
        if constexpr (SIZE == 8) {
            *words[2 * lane] = u32(bits);
            *words[2 * lane + 1] = u32(bits >> 32);
        } else {
            *words[lane * SIZE / 4] |= u32(bits) << (8 * (lane * SIZE % 4));
        }
    }
};

// ---- Folding ------------------------------------------------------------------------------------

// A segment's part that a block works on.
struct Part {
    // The word of the table with the address of rank 0, and that with the first address for the result.
    u32 addresses;
    u32 stores;
    u32 ranks;
    // Addresses for the result.
    u32 store_count;
    // Where the part begins in every contribution, and how many elements it has.
    u64 offset_bytes;
    u32 elems;
};

// Combines what is folded with the numbers of a piece.
template <class E, class Op, class P, class Scaling>
DEVICE void take(
    typename E::Number (&folded)[P::LANES], const typename P::Memory &memory, const Scaling &scaling) {
#pragma unroll
    for (u32 lane = 0; lane < P::LANES; lane++) {
        folded[lane] = Op::apply(folded[lane], scaling.before(E::widen(P::get(memory, lane))));
    }
}

// What is folded as a piece of memory, finished.
template <class E, class P, class Scaling>
DEVICE typename P::Memory result(const typename E::Number (&folded)[P::LANES], const Scaling &scaling) {
    typename P::Memory memory = {};
#pragma unroll
    for (u32 lane = 0; lane < P::LANES; lane++) P::put(memory, lane, E::narrow(scaling.after(folded[lane])));
    return memory;
}

// Folds this thread's pieces of a part, from `piece` on, for any number of ranks. While the piece of one rank is
// combined, that of the next is on its way; other warps hide the rest.
template <class E, class Op, class P, class Scaling>
DEVICE void fold_pieces(const Table &table, const Part &part, u32 piece, u32 pieces, const Scaling &scaling) {
    using Memory = typename P::Memory;
    const u64 *const addresses = table.words + part.addresses;
    const u64 *const stores = table.words + part.stores;
#pragma unroll 1
    for (; piece < pieces; piece += THREADS) {
        const u64 offset_bytes = part.offset_bytes + u64(piece) * sizeof(Memory);
        typename E::Number folded[P::LANES];
#pragma unroll
        for (u32 lane = 0; lane < P::LANES; lane++) folded[lane] = Op::neutral();
        Memory ahead = *global<const Memory>(addresses[0] + offset_bytes);
        u32 rank = 0;
#pragma unroll 1
        do {
            const Memory memory = ahead;
            if (rank + 1 < part.ranks) ahead = *global<const Memory>(addresses[rank + 1] + offset_bytes);
            take<E, Op, P>(folded, memory, scaling);
        } while (++rank < part.ranks);
        const Memory finished = result<E, P>(folded, scaling);
        u32 store = 0;
#pragma unroll 1
        do *global<Memory>(stores[store] + offset_bytes) = finished;
        while (++store < part.store_count);
    }
}

// Folds this thread's vectors of a part in place for exactly so many ranks, as long as UNROLL of them are left, and
// returns the first that is not folded. UNROLL vectors of every rank are on their way at once.
template <class E, class Op, u32 RANKS, u32 UNROLL, class Scaling>
DEVICE u32 fold_ranks(const Table &table, const Part &part, u32 vectors, const Scaling &scaling) {
    using V = Vector<E>;
    const u64 *const addresses = table.words + part.addresses;
    u32 piece = threadIdx.x;
#pragma unroll 1
    for (; piece + (UNROLL - 1) * THREADS < vectors; piece += UNROLL * THREADS) {
        const u64 offset_bytes = part.offset_bytes + 16 * u64(piece);
        uint4 memory[RANKS][UNROLL];
#pragma unroll
        for (u32 rank = 0; rank < RANKS; rank++) {
            const uint4 *const from = global<const uint4>(addresses[rank] + offset_bytes);
#pragma unroll
            for (u32 i = 0; i < UNROLL; i++) memory[rank][i] = from[i * THREADS];
        }
        begin_loads();
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) {
            typename E::Number folded[V::LANES];
#pragma unroll
            for (u32 lane = 0; lane < V::LANES; lane++) {
                folded[lane] = scaling.before(E::widen(V::get(memory[0][i], lane)));
            }
#pragma unroll
            for (u32 rank = 1; rank < RANKS; rank++) take<E, Op, V>(folded, memory[rank][i], scaling);
            memory[0][i] = result<E, V>(folded, scaling);
        }
#pragma unroll
        for (u32 rank = 0; rank < RANKS; rank++) {
            uint4 *const to = global<uint4>(addresses[rank] + offset_bytes);
#pragma unroll
            for (u32 i = 0; i < UNROLL; i++) to[i * THREADS] = memory[0][i];
        }
    }
    return piece;
}

// Whether all contributions and targets lie on 16 bytes. Parts begin at multiples of that.
DEVICE bool is_aligned(const Table &table, const Part &part) {
    const u32 end = part.stores + part.store_count;
    u64 all = 0;
    u32 word = part.addresses;
#pragma unroll 1
    do all |= table.words[word];
    while (++word < end);
    return all % 16 == 0;
}

// Whether it is one of the sums that gradients are made of, which have code of their own for usual numbers of ranks.
template <class E, class Op> struct IsCommon { enum { VALUE = false }; };
template <> struct IsCommon<F32, Sum<F32>> { enum { VALUE = true }; };
template <> struct IsCommon<F16, Sum<F16>> { enum { VALUE = true }; };
template <> struct IsCommon<BF16, Sum<BF16>> { enum { VALUE = true }; };

// Folds the vectors of a part and shortens it by them.
template <class E, class Op, class Scaling>
DEVICE void fold_vectors(const Table &table, Part &part, const Scaling &scaling) {
    using V = Vector<E>;
    const u32 vectors = part.elems / V::LANES;
    u32 piece = threadIdx.x;
    if constexpr (IsCommon<E, Op>::VALUE) {
        const FloatFinish<E> &finish = scaling;
        // Eight vectors are on their way for each thread.
        switch (scaling.prescale == 1.0f && part.stores == part.addresses ? part.ranks : 0) {
        case 2: piece = fold_ranks<E, Op, 2, 4>(table, part, vectors, finish); break;
        case 4: piece = fold_ranks<E, Op, 4, 2>(table, part, vectors, finish); break;
        case 8: piece = fold_ranks<E, Op, 8, 1>(table, part, vectors, finish); break;
        }
    }
    fold_pieces<E, Op, V>(table, part, piece, vectors, scaling);
    part.offset_bytes += 16 * u64(vectors);
    part.elems -= vectors * V::LANES;
}

// Folds what is left of a part, element by element.
template <class E, class Op, class Scaling>
DEVICE void fold_elements(const Table &table, const Part &part, const Scaling &scaling) {
    fold_pieces<E, Op, One<E>>(table, part, threadIdx.x, part.elems, scaling);
}

// The row, of so many words, of the segment that this block belongs to: the last one that begins with it or before.
// Segments without elements have no block and are passed over.
DEVICE u32 find_row(const Table &table, u32 count, u32 row_words) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (table.words[middle * row_words] <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low * row_words;
}

// What a block does.
template <class E, template <class> class Operation>
DEVICE void fold(
    const Table &table, u32 count, u32 ranks, u32 targets, u32 finish, double prescale, double factor, u64 divisor) {
    using Op = Operation<E>;
    enum : u32 { SIZE = sizeof(typename E::Bits), BLOCK_ELEMS = BLOCK_BYTES / SIZE };
    const u32 row = find_row(table, count, ranks + targets + 2);
    const u64 block = blockIdx.x - table.words[row], elems = table.words[row + 1];
    if (block * BLOCK_ELEMS >= elems) return;
    const u64 left = elems - block * BLOCK_ELEMS;
    const u32 stores = targets == 0 ? row + 2 : row + 2 + ranks, store_count = targets == 0 ? ranks : targets;
    const u32 part_elems = left < BLOCK_ELEMS ? u32(left) : u32(BLOCK_ELEMS);
    Part part = {row + 2, stores, ranks, store_count, block * BLOCK_BYTES, part_elems};
    if constexpr (E::KIND == FLOAT) {
        const FloatScaling<E> scaling(prescale, finish, factor);
        if (is_aligned(table, part)) fold_vectors<E, Op>(table, part, scaling);
        fold_elements<E, Op>(table, part, scaling);
    } else if constexpr (E::KIND == INTEGER) {
        // Scaling integers takes much code and is rare, so that is done element by element.
        const bool is_scaled = prescale != 1.0 || finish != 0;
        if (!is_scaled && is_aligned(table, part)) fold_vectors<E, Op>(table, part, Unscaled<E>());
        fold_elements<E, Op>(table, part, IntegerScaling<E>(prescale, finish, factor, divisor));
    } else {
        if (is_aligned(table, part)) fold_vectors<E, Op>(table, part, Unscaled<E>());
        fold_elements<E, Op>(table, part, Unscaled<E>());
    }
}

// ---- Folding to another type --------------------------------------------------------------------
//
// Partial results of halves between hosts are singles, and gradients may travel as halves. The result never lies where
// contributions do. Whoever uses these waits for a network, so that they go element by element.

template <class E, class Stored, template <class> class Operation>
DEVICE void fold_as(const Table &table, u32 count, u32 ranks, u32 targets, u32 finish, double prescale, double factor) {
    using Op = Operation<E>;
    using In = typename E::Bits;
    using Out = typename Stored::Bits;
    enum : u32 { BLOCK_ELEMS = BLOCK_BYTES / sizeof(In) };
    const u32 row = find_row(table, count, ranks + targets + 2);
    const u64 *const addresses = table.words + row + 2, *const stores = addresses + ranks;
    const u64 first = (blockIdx.x - table.words[row]) * BLOCK_ELEMS, elems = table.words[row + 1];
    const u64 end = first + BLOCK_ELEMS < elems ? first + BLOCK_ELEMS : elems;
    const FloatScaling<E> scaling(prescale, finish, factor);
#pragma unroll 1
    for (u64 elem = first + threadIdx.x; elem < end; elem += THREADS) {
        typename E::Number folded = Op::neutral();
#pragma unroll 1
        for (u32 rank = 0; rank < ranks; rank++) {
            folded = Op::apply(folded, scaling.before(E::widen(global<const In>(addresses[rank])[elem])));
        }
        const Out finished = Stored::narrow(scaling.after(folded));
#pragma unroll 1
        for (u32 store = 0; store < targets; store++) global<Out>(stores[store])[elem] = finished;
    }
}

// ---- Copying ------------------------------------------------------------------------------------

// Copies what lies at multiples of the size of T, and returns how many bytes that were.
template <class T> DEVICE u32 copy_as(u64 source, u64 target, u32 bytes) {
    enum : u32 { UNROLL = 4 };
    const T *const from = global<const T>(source);
    T *const to = global<T>(target);
    const u32 pieces = bytes / sizeof(T);
    u32 piece = threadIdx.x;
#pragma unroll 1
    for (; piece + (UNROLL - 1) * THREADS < pieces; piece += UNROLL * THREADS) {
        T memory[UNROLL];
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) memory[i] = from[piece + i * THREADS];
        begin_loads();
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) to[piece + i * THREADS] = memory[i];
    }
#pragma unroll 1
    for (; piece < pieces; piece += THREADS) to[piece] = from[piece];
    return pieces * sizeof(T);
}

// Copies in the widest pieces on which both addresses lie, and what is left byte by byte.
DEVICE void copy_part(u64 source, u64 target, u32 bytes) {
    const u64 both = source | target;
    u32 done = 0;
    if (both % 16 == 0) done = copy_as<uint4>(source, target, bytes);
    else if (both % 4 == 0) done = copy_as<u32>(source, target, bytes);
    else if (both % 2 == 0) done = copy_as<u16>(source, target, bytes);
    copy_as<u8>(source + done, target + done, bytes - done);
}

// ---- Adasum -------------------------------------------------------------------------------------
//
// Pairs of vectors are combined: a and b become a * factor(a) + b * factor(b), where factors follow from their inner
// products (`adasum.rs` of farandole-tensor). All of it is in double precision, and additions are in the order that
// `simd/vectors.rs` there describes, so results have the same bits. Three kernels with the same table come one after
// another: `adasum_dots_*` stores the inner products of every block, `adasum_factors` adds them up and stores the
// factors of every pair, `adasum_weigh_*` combines.
//
// A block works on ADASUM_BLOCK_ELEMS elements of one pair. The row of a pair has targets + 5 words:
//
//   0       the first block of the pair
//   1       elements of each vector
//   2       flags: which of both vectors are *carried*, that is combinations of vectors, and not contributions
//   3, 4    where they lie; zero: nowhere, all elements are zero
//   5 + t   where the combination goes, which may be where one of both lies
//
// Contributions are multiplied by the prescale. Carried vectors of halves are singles. A combination is stored as a
// carried vector, or finished: multiplied by the postscale and rounded to the type of contributions.
//
// Between kernels, numbers lie in *scratch* memory: first both factors of every pair, then three sums of every block.

// 16 for each thread of a block.
enum : u32 { ADASUM_BLOCK_ELEMS = 4096, ADASUM_THREAD_ELEMS = 16 };
// A row of the block, and the partial sums that it has.
enum : u32 { ADASUM_ROW_ELEMS = 256, ADASUM_LANES = 16 };
// Elements of a vector that a thread has on their way at once.
enum : u32 { ADASUM_AHEAD = 8 };
// Words of a row before its targets.
enum : u32 { ADASUM_ROW_WORDS = 5 };
// Where sums begin in scratch memory: behind the factors of as many pairs as a table has.
enum : u32 { ADASUM_SUMS_AT_BYTES = 2048 };

// The form of carried vectors, and how numbers become double and back.
template <class E> struct Carried {
    using Form = F32;
    DEVICE float from_double(double number) { return __double2float_rn(number); }
    // The product is exact.
    DEVICE double add_product(double sum, float a, float b) { return __fma_rn(double(a), double(b), sum); }
};

template <> struct Carried<F64> {
    using Form = F64;
    DEVICE double from_double(double number) { return number; }
    DEVICE double add_product(double sum, double a, double b) { return __dadd_rn(sum, __dmul_rn(a, b)); }
};

// One vector of a pair.
template <class E> struct Operand {
    using Number = typename E::Number;
    using Form = typename Carried<E>::Form;
    // As wide as a carried element, so that loading comes before all that depends on what it is.
    using Word = typename Form::Bits;
    enum : bool { SAME_SIZE = sizeof(typename E::Bits) == sizeof(Word) };

    u64 address;
    bool is_carried;
    Number prescale;

    METHOD Operand(u64 address, bool is_carried, double prescale)
        : address(address), is_carried(is_carried), prescale(is_carried ? E::one() : E::factor(prescale)) {}

    // Loads elements from `first` on, `stride` apart, as far as there are any.
    METHOD void load(Word (&words)[ADASUM_AHEAD], u64 first, u32 stride, u64 elems) const {
        if (address == 0) {
#pragma unroll
            for (u32 i = 0; i < ADASUM_AHEAD; i++) words[i] = 0;
        } else if (SAME_SIZE || is_carried) {
            load_as<Word>(words, first, stride, elems);
        } else {
            load_as<typename E::Bits>(words, first, stride, elems);
        }
    }

    template <class T> METHOD void load_as(Word (&words)[ADASUM_AHEAD], u64 first, u32 stride, u64 elems) const {
        const T *const from = global<const T>(address);
#pragma unroll
        for (u32 i = 0; i < ADASUM_AHEAD; i++) {
            const u64 elem = first + i * stride;
            words[i] = elem < elems ? from[elem] : T(0);
        }
    }

    // What was loaded. A vector that lies nowhere is not scaled.
    METHOD Number number(Word word) const {
        if (address == 0) return Number(0);
        if (!SAME_SIZE && is_carried) return Form::widen(word);
        return E::multiply(E::widen(typename E::Bits(word)), prescale);
    }
};

// A pair of vectors, and the part of it that a block works on.
template <class E> struct Pair {
    Operand<E> a, b;
    u32 row;
    u64 first, elems;

    METHOD Pair(const Table &table, u32 row, double prescale)
        : a(table.words[row + 3], table.words[row + 2] & 1, prescale),
          b(table.words[row + 4], table.words[row + 2] & 2, prescale), row(row),
          first((blockIdx.x - table.words[row]) * ADASUM_BLOCK_ELEMS), elems(table.words[row + 1]) {}
};

// Adds up what the threads of a block have, the second half to the first until one is left. Thread 0 has the sums.
DEVICE void add_pairwise(double (&sums)[3]) {
    __shared__ double shared[3][THREADS];
#pragma unroll
    for (u32 product = 0; product < 3; product++) shared[product][threadIdx.x] = sums[product];
#pragma unroll
    for (u32 width = THREADS / 2; width >= 32; width /= 2) {
        __syncthreads();
        if (threadIdx.x >= width) continue;
#pragma unroll
        for (u32 product = 0; product < 3; product++) {
            double *const of_product = shared[product];
            of_product[threadIdx.x] = __dadd_rn(of_product[threadIdx.x], of_product[threadIdx.x + width]);
        }
    }
    if (threadIdx.x >= 32) return;
#pragma unroll
    for (u32 product = 0; product < 3; product++) {
        double sum = shared[product][threadIdx.x];
#pragma unroll
        for (u32 width = 16; width > 0; width /= 2) sum = __dadd_rn(sum, __shfl_down_sync(~0u, sum, width));
        sums[product] = sum;
    }
}

DEVICE double *block_sums(u64 scratch, u64 block) {
    return global<double>(scratch + ADASUM_SUMS_AT_BYTES) + 3 * block;
}

// The inner products of a block. Each thread has one of its partial sums.
template <class E> DEVICE void adasum_dots(const Table &table, u32 count, u32 targets, double prescale, u64 scratch) {
    using Word = typename Operand<E>::Word;
    const Pair<E> pair(table, find_row(table, count, targets + ADASUM_ROW_WORDS), prescale);
    const u32 lane = threadIdx.x % ADASUM_LANES, row = threadIdx.x / ADASUM_LANES;
    const u64 first = pair.first + row * ADASUM_ROW_ELEMS + lane;
    // Of both, of the first with itself, and of the second.
    double sums[3] = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (u32 done = 0; done < ADASUM_THREAD_ELEMS; done += ADASUM_AHEAD) {
        const u64 from = first + done * ADASUM_LANES;
        Word of_a[ADASUM_AHEAD], of_b[ADASUM_AHEAD];
        pair.a.load(of_a, from, ADASUM_LANES, pair.elems);
        pair.b.load(of_b, from, ADASUM_LANES, pair.elems);
        begin_loads();
#pragma unroll
        for (u32 i = 0; i < ADASUM_AHEAD; i++) {
            if (from + i * ADASUM_LANES >= pair.elems) continue;
            const typename E::Number a = pair.a.number(of_a[i]), b = pair.b.number(of_b[i]);
            sums[0] = Carried<E>::add_product(sums[0], a, b);
            sums[1] = Carried<E>::add_product(sums[1], a, a);
            sums[2] = Carried<E>::add_product(sums[2], b, b);
        }
    }
    add_pairwise(sums);
    if (threadIdx.x != 0) return;
#pragma unroll
    for (u32 product = 0; product < 3; product++) block_sums(scratch, blockIdx.x)[product] = sums[product];
}

DEVICE double adasum_factor(double both, double square) {
    return square == 0.0 ? 1.0 : __dsub_rn(1.0, __ddiv_rn(both, __dmul_rn(2.0, square)));
}

// Combines a block's part of a pair.
template <class E>
DEVICE void adasum_weigh(
    const Table &table, u32 count, u32 targets, double prescale, double postscale, u32 is_finished, u64 scratch) {
    using Form = typename Carried<E>::Form;
    using Word = typename Form::Bits;
    const Pair<E> pair(table, find_row(table, count, targets + ADASUM_ROW_WORDS), prescale);
    const u64 *const stores = table.words + pair.row + ADASUM_ROW_WORDS;
    const double *const factors = global<const double>(scratch) + 2 * (pair.row / (targets + ADASUM_ROW_WORDS));
    const double factor_a = factors[0], factor_b = factors[1];
    const typename E::Number scale = E::factor(postscale);
#pragma unroll 1
    for (u32 done = 0; done < ADASUM_THREAD_ELEMS; done += ADASUM_AHEAD) {
        const u64 from = pair.first + done * THREADS + threadIdx.x;
        Word of_a[ADASUM_AHEAD], of_b[ADASUM_AHEAD];
        pair.a.load(of_a, from, THREADS, pair.elems);
        pair.b.load(of_b, from, THREADS, pair.elems);
        begin_loads();
#pragma unroll
        for (u32 i = 0; i < ADASUM_AHEAD; i++) {
            const double a = __dmul_rn(double(pair.a.number(of_a[i])), factor_a);
            const double b = __dmul_rn(double(pair.b.number(of_b[i])), factor_b);
            const typename E::Number combined = Carried<E>::from_double(__dadd_rn(a, b));
            of_a[i] = is_finished ? Word(E::narrow(E::multiply(combined, scale))) : Form::narrow(combined);
        }
#pragma unroll 1
        for (u32 store = 0; store < targets; store++) {
            const u64 to = stores[store];
#pragma unroll
            for (u32 i = 0; i < ADASUM_AHEAD; i++) {
                const u64 elem = from + i * THREADS;
                if (elem >= pair.elems) continue;
                if (Operand<E>::SAME_SIZE || !is_finished) global<Word>(to)[elem] = of_a[i];
                else global<typename E::Bits>(to)[elem] = typename E::Bits(of_a[i]);
            }
        }
    }
}

// ---- Kernels ------------------------------------------------------------------------------------

// The factors of a pair, by a block for each.
extern "C" __global__ void __launch_bounds__(THREADS) adasum_factors(
    const __grid_constant__ Table table, u32 targets, u64 scratch) {
    const u32 row = blockIdx.x * (targets + ADASUM_ROW_WORDS);
    const u64 blocks = (table.words[row + 1] + ADASUM_BLOCK_ELEMS - 1) / ADASUM_BLOCK_ELEMS;
    const double *const of_blocks = block_sums(scratch, table.words[row]);
    double sums[3] = {0.0, 0.0, 0.0};
#pragma unroll 4
    for (u64 block = threadIdx.x; block < blocks; block += THREADS) {
#pragma unroll
        for (u32 product = 0; product < 3; product++) {
            sums[product] = __dadd_rn(sums[product], of_blocks[3 * block + product]);
        }
    }
    add_pairwise(sums);
    if (threadIdx.x != 0) return;
    double *const factors = global<double>(scratch) + 2 * blockIdx.x;
    factors[0] = adasum_factor(sums[0], sums[1]);
    factors[1] = adasum_factor(sums[0], sums[2]);
}

#define ADASUM(DTYPE, ELEMENT) \
    extern "C" __global__ void __launch_bounds__(THREADS) adasum_dots_##DTYPE( \
        const __grid_constant__ Table table, u32 count, u32 targets, double prescale, u64 scratch) { \
        adasum_dots<ELEMENT>(table, count, targets, prescale, scratch); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) adasum_weigh_##DTYPE( \
        const __grid_constant__ Table table, u32 count, u32 targets, double prescale, double postscale, \
        u32 is_finished, u64 scratch) { \
        adasum_weigh<ELEMENT>(table, count, targets, prescale, postscale, is_finished, scratch); \
    }

ADASUM(f16, F16)
ADASUM(bf16, BF16)
ADASUM(f32, F32)
ADASUM(f64, F64)

extern "C" __global__ void __launch_bounds__(THREADS) copy(const __grid_constant__ Table table, u32 count) {
    const u32 row = find_row(table, count, 4);
    const u64 offset = (blockIdx.x - table.words[row]) * BLOCK_BYTES, all = table.words[row + 1];
    if (offset >= all) return;
    const u32 bytes = all - offset < BLOCK_BYTES ? u32(all - offset) : BLOCK_BYTES;
    copy_part(table.words[row + 2] + offset, table.words[row + 3] + offset, bytes);
}

#define FOLD(NAME, ELEMENT, OPERATION) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME( \
        const __grid_constant__ Table table, u32 count, u32 ranks, u32 targets, u32 finish, double prescale, \
        double factor, u64 divisor) { \
        fold<ELEMENT, OPERATION>(table, count, ranks, targets, finish, prescale, factor, divisor); \
    }

#define FOLDS(DTYPE, ELEMENT) \
    FOLD(fold_##DTYPE##_sum, ELEMENT, Sum) \
    FOLD(fold_##DTYPE##_min, ELEMENT, Min) \
    FOLD(fold_##DTYPE##_max, ELEMENT, Max) \
    FOLD(fold_##DTYPE##_product, ELEMENT, Product)

FOLDS(bool, Bool)
FOLDS(u8, U8)
FOLDS(i8, I8)
FOLDS(u16, U16)
FOLDS(i16, I16)
FOLDS(u32, U32)
FOLDS(i32, I32)
FOLDS(u64, U64)
FOLDS(i64, I64)
FOLDS(f16, F16)
FOLDS(bf16, BF16)
FOLDS(f32, F32)
FOLDS(f64, F64)

#define FOLD_AS(NAME, ELEMENT, STORED, OPERATION) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME( \
        const __grid_constant__ Table table, u32 count, u32 ranks, u32 targets, u32 finish, double prescale, \
        double factor, u64) { \
        fold_as<ELEMENT, STORED, OPERATION>(table, count, ranks, targets, finish, prescale, factor); \
    }

#define WIDENING_FOLDS(DTYPE, ELEMENT) \
    FOLD_AS(fold_##DTYPE##_f32_sum, ELEMENT, F32, Sum) \
    FOLD_AS(fold_##DTYPE##_f32_min, ELEMENT, F32, Min) \
    FOLD_AS(fold_##DTYPE##_f32_max, ELEMENT, F32, Max) \
    FOLD_AS(fold_##DTYPE##_f32_product, ELEMENT, F32, Product)

WIDENING_FOLDS(f16, F16)
WIDENING_FOLDS(bf16, BF16)
FOLD_AS(fold_f32_f16_sum, F32, F16, Sum)
FOLD_AS(fold_f32_bf16_sum, F32, BF16, Sum)
