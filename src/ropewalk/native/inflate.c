/* Whether a zlib stream holds given bytes: the other half of `deflate.c`, and as strict as any inflater.
 *
 * What is acknowledged must be readable, so every object is inflated again before it is written. Nothing is copied: the
 * bytes that should come out are known, and each is compared as it comes. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

enum {
    BITS_MAX = 15,
    QUICK_BITS = 10, /* codes up to this long are found by one look */
    LITERALS = 286,
    DISTANCES = 30,
    LENGTHS = 19,
    END = 256,
    HEAD_MAX = 1024, /* bytes; a block that tells its codes in more is read anew each time */
};

typedef struct {
    const uint8_t *at, *end;
    uint64_t held;
    unsigned count;
    unsigned beyond; /* bits that were asked for and are not there */
} source;

/* At least 32 bits afterwards; behind the end there are zeros, which are counted. */
static inline void fill(source *from) {
    if (from->end - from->at >= 8) {
        uint64_t next = 0;
        for (int n = 0; n < 8; n++) next |= (uint64_t)from->at[n] << (8 * n);
        from->held |= next << from->count; /* of which only whole bytes are taken; the rest comes again */
        from->at += (63 - from->count) >> 3;
        from->count |= 56;
        return;
    }
    while (from->count <= 56 && from->at < from->end) {
        from->held |= (uint64_t)*from->at++ << from->count;
        from->count += 8;
    }
    if (from->count < 32) from->beyond += 32, from->count += 32;
}

static inline unsigned take(source *from, unsigned count) {
    unsigned value = (unsigned)(from->held & (((uint64_t)1 << count) - 1));
    from->held >>= count;
    from->count -= count;
    return value;
}

typedef struct {
    uint16_t quick[1 << QUICK_BITS]; /* symbol << 4 | length; 0: longer, or no code */
    uint16_t counts[BITS_MAX + 1];
    uint16_t symbols[LITERALS + 2];
} decoder;

static inline unsigned reversed(unsigned value, unsigned length) {
    value = (value & 0x5555) << 1 | (value >> 1 & 0x5555);
    value = (value & 0x3333) << 2 | (value >> 2 & 0x3333);
    value = (value & 0x0f0f) << 4 | (value >> 4 & 0x0f0f);
    return ((value & 0x00ff) << 8 | value >> 8) >> (16 - length);
}

/* What one stream told about its codes, and what came of reading it: others of its kind tell the same. */
struct checker {
    decoder literals, distances;
    uint8_t said[HEAD_MAX];
    size_t said_bits; /* 0: nothing yet */
};

HIDDEN checker *checkers(size_t count) { return calloc(count, sizeof(checker)); }

HIDDEN checker *checker_at(checker *them, size_t at) { return them + at; }

/* A decoder for canonical codes of these lengths; 0 if there is none. As zlib has it, a code may leave some over only if
 * it has a single symbol, of one bit. */
static int prepare(decoder *it, const uint8_t *lengths, int size, int single) {
    uint16_t begins[BITS_MAX + 2] = {0}, next[BITS_MAX + 1] = {0};
    memset(it->counts, 0, sizeof it->counts);
    for (int n = 0; n < size; n++) it->counts[lengths[n]]++;
    it->counts[0] = 0;
    int left = 1;
    unsigned code = 0;
    for (int length = 1; length <= BITS_MAX; length++) {
        left = left * 2 - it->counts[length];
        if (left < 0) return 0;
        begins[length + 1] = (uint16_t)(begins[length] + it->counts[length]);
        code = (code + (length > 1 ? it->counts[length - 1] : 0u)) << 1;
        next[length] = (uint16_t)code;
    }
    if (left && !(single && begins[BITS_MAX + 1] <= 1 && it->counts[1] == begins[BITS_MAX + 1])) return 0;
    memset(it->quick, 0, sizeof it->quick);
    for (int n = 0; n < size; n++) {
        unsigned length = lengths[n];
        if (!length) continue;
        it->symbols[begins[length]++] = (uint16_t)n;
        unsigned turned = reversed(next[length]++, length);
        if (length > QUICK_BITS) continue;
        for (unsigned at = turned; at < 1u << QUICK_BITS; at += 1u << length) it->quick[at] = (uint16_t)((unsigned)n << 4 | length);
    }
    return 1;
}

/* The next symbol, -1 if the bits are no code. At most BITS_MAX bits are taken. */
static inline int symbol(source *from, const decoder *by) {
    unsigned found = by->quick[from->held & ((1u << QUICK_BITS) - 1)];
    if (found) {
        take(from, found & 15);
        return (int)(found >> 4);
    }
    int code = 0, first = 0, index = 0;
    for (int length = 1; length <= BITS_MAX; length++) {
        code |= (int)(from->held >> (length - 1) & 1);
        int count = by->counts[length];
        if (code - first < count) {
            take(from, (unsigned)length);
            return by->symbols[index + code - first];
        }
        index += count, first = (first + count) << 1, code <<= 1;
    }
    return -1;
}

/* The codes of a block that tells its own; 0 if it does not tell any. */
static int told(source *from, decoder *literals, decoder *distances) {
    static const uint8_t order[LENGTHS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LITERALS + DISTANCES + 140] = {0}, few[LENGTHS] = {0};
    fill(from);
    int literal = (int)take(from, 5) + 257, distance = (int)take(from, 5) + 1, kinds = (int)take(from, 4) + 4;
    if (literal > LITERALS || distance > DISTANCES) return 0;
    for (int n = 0; n < kinds; n++) {
        fill(from);
        few[order[n]] = (uint8_t)take(from, 3);
    }
    if (!prepare(literals, few, LENGTHS, 0)) return 0;
    for (int n = 0; n < literal + distance;) {
        fill(from);
        int found = symbol(from, literals);
        if (found < 0) return 0;
        if (found < 16) {
            lengths[n++] = (uint8_t)found;
            continue;
        }
        if (found == 16 && !n) return 0;
        int value = found == 16 ? lengths[n - 1] : 0;
        int times = found == 16 ? 3 + (int)take(from, 2) : found == 17 ? 3 + (int)take(from, 3) : 11 + (int)take(from, 7);
        if (n + times > literal + distance) return 0;
        for (; times; times--) lengths[n++] = (uint8_t)value;
    }
    return lengths[END] && prepare(literals, lengths, literal, 1) && prepare(distances, lengths + literal, distance, 1);
}

static int fixed(decoder *literals, decoder *distances) {
    uint8_t lengths[LITERALS + 2];
    for (int n = 0; n < LITERALS + 2; n++) lengths[n] = n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8;
    uint8_t five[32];
    memset(five, 5, sizeof five);
    return prepare(literals, lengths, LITERALS + 2, 0) && prepare(distances, five, 32, 0);
}

/* Reads the tokens of a block and compares what they mean with `raw`; 0 if it is anything else. */
static int tokens(source *from, const decoder *literals, const decoder *distances, const uint8_t *raw, size_t size,
                  size_t *at) {
    static const uint8_t extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                      31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    size_t here = *at;
    for (;;) {
        if (from->count < 32) fill(from);
        int found = symbol(from, literals);
        if (found < 0) return 0;
        if (found < END) {
            if (here >= size || raw[here] != found) return 0;
            here++;
            continue;
        }
        if (found == END) break;
        if (found - 257 >= 29) return 0;
        size_t length = base[found - 257] + take(from, extra[found - 257]);
        fill(from);
        int far = symbol(from, distances);
        if (far < 0 || far >= DISTANCES) return 0;
        unsigned more = far < 4 ? 0 : (unsigned)far / 2 - 1;
        size_t distance = far < 4 ? (size_t)far + 1 : ((size_t)(2 + (far & 1)) << more) + 1 + take(from, more);
        /* What lies behind was compared already, so it is what an inflater would copy from. */
        if (distance > here || length > size - here || memcmp(raw + here, raw + here - distance, length)) return 0;
        here += length;
    }
    *at = here;
    return 1;
}

static inline int same_bits(const uint8_t *one, const uint8_t *other, size_t count) {
    return !memcmp(one, other, count / 8) && !((one[count / 8] ^ other[count / 8]) & ((1u << (count & 7)) - 1));
}

/* Reads up to the tokens of the first block if it begins as one did before; 0 if it does not. */
static int known(const checker *by, source *from) {
    size_t count = by->said_bits;
    if (!count || (size_t)(from->end - from->at) <= count / 8 || !same_bits(from->at, by->said, count)) return 0;
    from->at += count / 8;
    fill(from);
    take(from, count & 7);
    return 1;
}

static void remember(checker *by, const source *from, const uint8_t *begin) {
    if (from->beyond) return;
    size_t count = (size_t)(from->at - begin) * 8 - from->count;
    if (count / 8 >= HEAD_MAX) return;
    memcpy(by->said, begin, count / 8 + 1);
    by->said_bits = count;
}

HIDDEN int zlib_holds(const uint8_t *packed, size_t packed_size, const uint8_t *raw, size_t size, checker *by) {
    if (packed_size < 6 || packed[0] != 0x78 || (packed[0] * 256 + packed[1]) % 31 || packed[1] & 0x20) return 0;
    const uint8_t *const begin = packed + 2;
    source from = {begin, packed + packed_size - 4, 0, 0, 0};
    size_t at = 0;
    unsigned last = (unsigned)known(by, &from);
    if (last && !tokens(&from, &by->literals, &by->distances, raw, size, &at)) return 0;
    while (!last) {
        int first = from.at == begin;
        fill(&from);
        last = take(&from, 1);
        unsigned kind = take(&from, 2);
        if (kind == 0) {
            take(&from, from.count & 7);
            fill(&from);
            size_t length = take(&from, 16);
            if (length != (take(&from, 16) ^ 0xffff)) return 0;
            if (from.beyond) return 0;
            from.at -= from.count / 8; /* whole bytes are held, and none of them is used */
            from.held = from.count = 0;
            if (length > (size_t)(from.end - from.at) || length > size - at) return 0;
            if (length && memcmp(raw + at, from.at, length)) return 0;
            from.at += length, at += length;
            continue;
        }
        by->said_bits = 0; /* the decoders are about to change */
        if (kind == 1 ? !fixed(&by->literals, &by->distances) : kind == 2 ? !told(&from, &by->literals, &by->distances) : 1) return 0;
        if (kind == 2 && first && last) remember(by, &from, begin);
        if (!tokens(&from, &by->literals, &by->distances, raw, size, &at)) return 0;
    }
    /* Zeros from behind the end must all be left over, and of the stream less than a byte. */
    if (from.count < from.beyond || from.count - from.beyond > 7 || from.at != from.end) return 0;
    const uint8_t *said = packed + packed_size - 4;
    uint32_t sum = (uint32_t)said[0] << 24 | (uint32_t)said[1] << 16 | (uint32_t)said[2] << 8 | said[3];
    return at == size && sum == zlib_sum(raw, size);
}
