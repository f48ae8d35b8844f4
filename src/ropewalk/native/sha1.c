/* SHA-1, for the names git gives: by the processor's own instructions where it has them. */
#include "native.h"

#include <string.h>

#define ROLL(x, n) (((x) << (n)) | ((x) >> (32 - (n))))

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void blocks_portable(uint32_t state[5], const uint8_t *at, size_t count) {
    uint32_t w[80];
    for (; count; count--, at += 64) {
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], next;
        for (int t = 0; t < 16; t++) w[t] = big_endian(at + 4 * t);
        for (int t = 16; t < 80; t++) w[t] = ROLL(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
#define STEP(mix, constant)                              \
    next = ROLL(a, 5) + (mix) + e + (constant) + w[t]; \
    e = d, d = c, c = ROLL(b, 30), b = a, a = next
        for (int t = 0; t < 20; t++) { STEP(d ^ (b & (c ^ d)), 0x5a827999u); }
        for (int t = 20; t < 40; t++) { STEP(b ^ c ^ d, 0x6ed9eba1u); }
        for (int t = 40; t < 60; t++) { STEP((b & c) | (d & (b | c)), 0x8f1bbcdcu); }
        for (int t = 60; t < 80; t++) { STEP(b ^ c ^ d, 0xca62c1d6u); }
#undef STEP
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

#if defined(__x86_64__) && !defined(PORTABLE)
#define HAS_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>

__attribute__((target("sha,ssse3,sse4.1"))) static void blocks_shani(uint32_t state[5], const uint8_t *at, size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1b);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count; count--, at += 64) {
        const __m128i abcd_before = abcd, e_before = e;
        __m128i w[4], last, old;
        for (int t = 0; t < 4; t++) w[t] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(at + 16 * t)), swap);
        /* Twenty groups of four rounds. A group takes four words, adds the e of the group before, and the words for
         * sixteen rounds later are mixed from the last four groups. */
#define GROUP(g, mix)                                                                                \
    last = (g) ? _mm_sha1nexte_epu32(e, w[(g) & 3]) : _mm_add_epi32(e, w[0]);                        \
    e = abcd;                                                                                        \
    abcd = _mm_sha1rnds4_epu32(abcd, last, mix);                                                     \
    if ((g) < 16) {                                                                                  \
        old = _mm_sha1msg1_epu32(w[(g) & 3], w[((g) + 1) & 3]);                                      \
        old = _mm_xor_si128(old, w[((g) + 2) & 3]);                                                  \
        w[(g) & 3] = _mm_sha1msg2_epu32(old, w[((g) + 3) & 3]);                                      \
    }
        GROUP(0, 0) GROUP(1, 0) GROUP(2, 0) GROUP(3, 0) GROUP(4, 0)
        GROUP(5, 1) GROUP(6, 1) GROUP(7, 1) GROUP(8, 1) GROUP(9, 1)
        GROUP(10, 2) GROUP(11, 2) GROUP(12, 2) GROUP(13, 2) GROUP(14, 2)
        GROUP(15, 3) GROUP(16, 3) GROUP(17, 3) GROUP(18, 3) GROUP(19, 3)
#undef GROUP
        e = _mm_sha1nexte_epu32(e, e_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1b));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static int instructions_are_here;

/* Asked of the processor itself: `__builtin_cpu_supports` knows nothing of SHA in many compilers. */
__attribute__((constructor)) static void look_for_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return;
    instructions_are_here = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}
#endif

static void blocks(uint32_t state[5], const uint8_t *at, size_t count) {
#ifdef HAS_INSTRUCTIONS
    if (instructions_are_here) {
        blocks_shani(state, at, count);
        return;
    }
#endif
    blocks_portable(state, at, count);
}

HIDDEN void sha1_begin(sha1 *it) {
    static const uint32_t start[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
    memcpy(it->state, start, sizeof start);
    it->count = 0;
}

HIDDEN void sha1_add(sha1 *it, const uint8_t *raw, size_t size) {
    size_t held = it->count & 63;
    if (!size) return; /* what is empty may lie nowhere, and nowhere must not be copied from */
    it->count += size;
    if (held) {
        size_t room = 64 - held, take = size < room ? size : room;
        memcpy(it->block + held, raw, take);
        raw += take, size -= take;
        if (held + take < 64) return;
        blocks(it->state, it->block, 1);
    }
    blocks(it->state, raw, size / 64);
    memcpy(it->block, raw + (size & ~(size_t)63), size & 63);
}

HIDDEN void sha1_end(sha1 *it, uint8_t digest[20]) {
    uint64_t bits = it->count * 8;
    size_t held = it->count & 63;
    it->block[held++] = 0x80;
    if (held > 56) {
        memset(it->block + held, 0, 64 - held);
        blocks(it->state, it->block, 1);
        held = 0;
    }
    memset(it->block + held, 0, 56 - held);
    for (int n = 0; n < 8; n++) it->block[56 + n] = (uint8_t)(bits >> (56 - 8 * n));
    blocks(it->state, it->block, 1);
    for (int n = 0; n < 20; n++) digest[n] = (uint8_t)(it->state[n / 4] >> (24 - 8 * (n % 4)));
}
