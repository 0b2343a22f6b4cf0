/* CRC-32 of zlib: by carry-less multiplication if the processor has it, else by tables. */
#include "kernels.h"

#define POLYNOMIAL 0xEDB88320u
#define SLICES 16

static uint32_t tables[SLICES][256];

static uint32_t by_tables(uint32_t crc, const uint8_t *data, int64_t length) {
    for (; length >= SLICES; data += SLICES, length -= SLICES) {
        uint32_t first, next = 0;
        memcpy(&first, data, 4);
        first ^= crc;
        for (int k = 0; k < 4; k++) next ^= tables[SLICES - 1 - k][first >> 8 * k & 0xFF];
        for (int k = 4; k < SLICES; k++) next ^= tables[SLICES - 1 - k][data[k]];
        crc = next;
    }
    for (; length > 0; data++, length--) crc = tables[0][(crc ^ *data) & 0xFF] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* x^(8n + 32) and x^(8n - 32) modulo the polynomial, bit-reflected, for folding over n bytes. */
typedef struct { uint64_t low, high; } fold_factors;
static fold_factors over_16, over_64, over_256;
static int way;

/* x^n modulo the polynomial, reflected, shifted left by one as a product of two reflected factors requires. */
static uint64_t power(int64_t n) {
    uint32_t value = 0x80000000u;
    for (; n > 0; n--) value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
    return (uint64_t)value << 1;
}

static fold_factors factors_over(int64_t bytes) {
    return (fold_factors){power(8 * bytes + 32), power(8 * bytes - 32)};
}

#define FOLDING __attribute__((target("pclmul,ssse3,sse4.1")))
#define WIDE_FOLDING __attribute__((target("vpclmulqdq,pclmul,avx512f,avx512vl,sse4.1")))

FOLDING PART __m128i folded(__m128i value, __m128i factors, __m128i next) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(value, factors, 0x00),
                                             _mm_clmulepi64_si128(value, factors, 0x11)));
}

FOLDING PART __m128i factors_of(fold_factors it) { return _mm_set_epi64x((int64_t)it.high, (int64_t)it.low); }

/* The CRC of 16 folded bytes and the bytes after them; at least 32 bytes in all. */
FOLDING static uint32_t finished(__m128i value, const uint8_t *rest, int64_t length) {
    static const uint8_t places[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    };
    __m128i over = factors_of(over_16);
    for (; length >= 16; rest += 16, length -= 16)
        value = folded(value, over, _mm_loadu_si128((const __m128i *)rest));
    if (length > 0) {
        /* align the first bytes with the last 16 of the text */
        __m128i begin = _mm_loadu_si128((const __m128i *)(places + length));
        __m128i end = _mm_shuffle_epi8(value, _mm_loadu_si128((const __m128i *)(places + 16 + length)));
        end = _mm_blendv_epi8(_mm_loadu_si128((const __m128i *)(rest + length - 16)), end, begin);
        value = folded(_mm_shuffle_epi8(value, begin), over, end);
    }
    /* a text of these 16 bytes, starting from a register of zero, has the same CRC */
    uint8_t last[16];
    _mm_storeu_si128((__m128i *)last, value);
    return by_tables(0, last, 16);
}

FOLDING static uint32_t by_folding(uint32_t crc, const uint8_t *data, int64_t length) {
    const __m128i *at = (const __m128i *)data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(at), _mm_cvtsi32_si128((int)crc));
    if (length < 128) return finished(a, data + 16, length - 16);
    __m128i b = _mm_loadu_si128(at + 1), c = _mm_loadu_si128(at + 2), d = _mm_loadu_si128(at + 3);
    __m128i over = factors_of(over_64);
    const uint8_t *rest = data + 64;
    for (length -= 64; length >= 64; rest += 64, length -= 64) {
        at = (const __m128i *)rest;
        a = folded(a, over, _mm_loadu_si128(at));
        b = folded(b, over, _mm_loadu_si128(at + 1));
        c = folded(c, over, _mm_loadu_si128(at + 2));
        d = folded(d, over, _mm_loadu_si128(at + 3));
    }
    over = factors_of(over_16);
    return finished(folded(folded(folded(a, over, b), over, c), over, d), rest, length);
}

WIDE_FOLDING PART __m512i wide_folded(__m512i value, __m512i factors, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, factors, 0x00),
                                     _mm512_clmulepi64_epi128(value, factors, 0x11), next, 0x96);
}

WIDE_FOLDING static uint32_t by_wide_folding(uint32_t crc, const uint8_t *data, int64_t length) {
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), first), b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    __m512i over = _mm512_broadcast_i32x4(factors_of(over_256));
    const uint8_t *rest = data + 256;
    for (length -= 256; length >= 256; rest += 256, length -= 256) {
        a = wide_folded(a, over, _mm512_loadu_si512(rest));
        b = wide_folded(b, over, _mm512_loadu_si512(rest + 64));
        c = wide_folded(c, over, _mm512_loadu_si512(rest + 128));
        d = wide_folded(d, over, _mm512_loadu_si512(rest + 192));
    }
    over = _mm512_broadcast_i32x4(factors_of(over_64));
    a = wide_folded(wide_folded(wide_folded(a, over, b), over, c), over, d);
    for (; length >= 64; rest += 64, length -= 64) a = wide_folded(a, over, _mm512_loadu_si512(rest));
    __m128i one = factors_of(over_16), value = _mm512_extracti32x4_epi32(a, 0);
    value = folded(value, one, _mm512_extracti32x4_epi32(a, 1));
    value = folded(value, one, _mm512_extracti32x4_epi32(a, 2));
    value = folded(value, one, _mm512_extracti32x4_epi32(a, 3));
    return finished(value, rest, length);
}

static void choose(void) {
    over_16 = factors_over(16), over_64 = factors_over(64), over_256 = factors_over(256);
    /* ask the processor itself: not every compiler's library supports __builtin_cpu_supports */
    const uint32_t pclmul = 1u << 1, ssse3 = 1u << 9, sse41 = 1u << 19, osxsave = 1u << 27, zmm_saved = 0xE6;
    const uint32_t avx512f = 1u << 16, avx512vl = 1u << 31, vpclmulqdq = 1u << 10;
    uint32_t a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || ~c & (pclmul | ssse3 | sse41)) return;
    way = 1;
    if (~c & osxsave) return;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (~saved & zmm_saved || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    if (!(~b & (avx512f | avx512vl)) && c & vpclmulqdq) way = 2;
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static const int way = 1;
static void choose(void) {}

static uint32_t by_instruction(uint32_t crc, const uint8_t *data, int64_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32d(crc, word);
    }
    for (; length > 0; data++, length--) crc = __crc32b(crc, *data);
    return crc;
}
#else
static const int way = 0;
static void choose(void) {}
#endif

__attribute__((constructor)) static void prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int k = 0; k < 8; k++) value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = value;
    }
    for (int row = 1; row < SLICES; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[row - 1][byte];
            tables[row][byte] = before >> 8 ^ tables[0][before & 0xFF];
        }
    choose();
}

#if !defined(MQTOOL_MARK)
#define MQTOOL_MARK "mqtool kernels of unknown sources"
#endif
KERNEL const char mqtool_mark[] = MQTOOL_MARK;

uint32_t crc32_of(const uint8_t *data, int64_t length) {
#if defined(__x86_64__)
    if (way == 2 && length >= 256) return ~by_wide_folding(~0u, data, length);
    if (way && length >= 32) return ~by_folding(~0u, data, length);
#elif defined(__ARM_FEATURE_CRC32)
    return ~by_instruction(~0u, data, length);
#endif
    return ~by_tables(~0u, data, length);
}

int64_t mq_crc_is_fast(void) { return way != 0; }

int64_t mq_crc32(const uint8_t *data, int64_t size, int64_t start, int64_t length, int64_t portable) {
    if (start < 0 || length < 0 || start > size || length > size - start) return 0;
    return portable ? ~by_tables(~0u, data + start, length) & 0xFFFFFFFF : crc32_of(data + start, length);
}

int64_t mq_bits_that_change(int64_t length, int64_t change, int64_t *found, int64_t room) {
    int64_t count = 0;
    for (int bit = 0; bit < 8; bit++) {
        uint32_t value = tables[0][1 << bit];
        for (int64_t after = 0; after < length; after++) {
            if ((value & 0x7FFFFFFF) == change) {
                if (count < room) found[count] = 8 * (length - 1 - after) + bit;
                count++;
            }
            value = tables[0][value & 0xFF] ^ value >> 8;
        }
    }
    return count;
}
