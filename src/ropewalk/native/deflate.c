/* Deflate (RFC 1951) in zlib's frame (RFC 1950), for objects of about a kilobyte.
 *
 * Libraries for large streams spend most of their time on such objects in setting up. Here nothing is allocated: one
 * look for repetitions through a small table, then whichever block is shortest: with codes of its own, with the fixed
 * codes, or stored. Any inflater reads the result. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

enum {
    HASH_BITS = 12,
    MATCH_MIN = 5, /* four bytes cost as much to name as to write */
    MATCH_MAX = 258,
    WINDOW = 32768,
    BLOCK = 16384, /* bytes; its last match may reach beyond */
    LITERALS = 286,
    DISTANCES = 30,
    LENGTHS = 19, /* symbols in which the lengths of codes are written */
    END = 256,
    PATIENCE_BITS = 6, /* after 64 places without a repetition, every second is looked at, and so on */
    HEAD_MAX = 1024, /* bytes in which two codes are told; 316 symbols of at most 14 bits fit in 560 */
};

/* ---- bits, the lowest first ---- */

typedef struct {
    uint8_t *at;
    uint64_t held;
    unsigned count;
} bits;

static inline void put(bits *to, uint64_t value, unsigned count) {
    to->held |= value << to->count;
    to->count += count;
}

/* Writes the whole bytes held. At most 56 bits may be put between two calls; eight bytes behind `at` are overwritten. */
static inline void drain(bits *to) {
    for (int n = 0; n < 8; n++) to->at[n] = (uint8_t)(to->held >> (8 * n));
    to->at += to->count >> 3;
    to->held >>= to->count & ~7u;
    to->count &= 7;
}

static void align(bits *to) {
    drain(to);
    if (to->count) *to->at++ = (uint8_t)to->held;
    to->held = to->count = 0;
}

/* ---- codes ---- */

/* A prefix code: what to write for each symbol, and how many bits of it; 0 for symbols that have none. */
typedef struct {
    uint16_t bits[LITERALS + 2];
    uint8_t length[LITERALS + 2];
} code;

static const uint8_t LENGTH_EXTRA[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t LENGTH_BASE[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t LENGTHS_ORDER[LENGTHS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
static const uint8_t LENGTHS_EXTRA[LENGTHS] = {[16] = 2, [17] = 3, [18] = 7};

static inline unsigned top_bit(unsigned value) { return 31u - (unsigned)__builtin_clz(value); }

static inline unsigned length_symbol(unsigned length) {
    if (length == MATCH_MAX) return 28;
    if (length < 11) return length - 3;
    unsigned extra = top_bit(length - 3) - 2;
    return 4 + 4 * extra + (((length - 3) >> extra) & 3);
}

static inline unsigned distance_symbol(unsigned distance) {
    if (distance < 5) return distance - 1;
    unsigned extra = top_bit(distance - 1) - 1;
    return 2 + 2 * extra + (((distance - 1) >> extra) & 1);
}

static inline unsigned distance_extra(unsigned symbol) { return symbol < 4 ? 0 : symbol / 2 - 1; }

static inline unsigned reversed(unsigned value, unsigned length) {
    value = (value & 0x5555) << 1 | (value >> 1 & 0x5555);
    value = (value & 0x3333) << 2 | (value >> 2 & 0x3333);
    value = (value & 0x0f0f) << 4 | (value >> 4 & 0x0f0f);
    return ((value & 0x00ff) << 8 | value >> 8) >> (16 - length);
}

/* Canonical codes of given lengths, bits reversed as deflate writes them. */
static void assign(code *it, int size) {
    unsigned counts[16] = {0}, next[16] = {0};
    for (int n = 0; n < size; n++)
        if (it->length[n]) counts[it->length[n]]++;
    for (int length = 1; length < 16; length++) next[length] = (next[length - 1] + counts[length - 1]) << 1;
    for (int n = 0; n < size; n++)
        if (it->length[n]) it->bits[n] = (uint16_t)reversed(next[it->length[n]]++, it->length[n]);
}

/* Lengths of the best prefix code for how often each symbol comes, none above `limit`. */
static void measure(const uint16_t *often, int size, unsigned limit, code *it) {
    int32_t leaves[LITERALS], sorted[LITERALS]; /* how often << 9 | symbol */
    uint32_t weights[2 * LITERALS];
    uint16_t above[2 * LITERALS];
    uint8_t depth[2 * LITERALS];
    unsigned counts[LITERALS] = {0};
    int used = 0;
    memset(it->length, 0, (size_t)size);
    for (int n = 0; n < size; n++) {
        leaves[used] = often[n] << 9 | n;
        used += often[n] != 0;
    }
    if (used < 2) { /* a code of one bit at least: inflaters want one */
        if (used) it->length[leaves[0] & 511] = 1;
        return;
    }
    /* A symbol's place is the number of those below it. That is quadratic, but has no branch to guess wrong. */
    for (int n = 0; n < used; n++) {
        int below = 0;
        for (int other = 0; other < used; other++) below += leaves[other] < leaves[n];
        sorted[below] = leaves[n];
    }
    /* The two lightest become one, again and again. Leaves lie in order, and joined ones come out in order. */
    for (int n = 0; n < used; n++) weights[n] = (uint32_t)sorted[n] >> 9;
    int leaf = 0, joined = used, made = used;
    for (; made < 2 * used - 1; made++) {
        weights[made] = 0;
        for (int twice = 0; twice < 2; twice++) {
            int lightest = leaf < used && (joined >= made || weights[leaf] <= weights[joined]) ? leaf++ : joined++;
            weights[made] += weights[lightest];
            above[lightest] = (uint16_t)made;
        }
    }
    depth[made - 1] = 0;
    for (int n = made - 2; n >= 0; n--) depth[n] = (uint8_t)(depth[above[n]] + 1);
    for (int n = 0; n < used; n++) counts[depth[n] < limit ? depth[n] : limit]++;
    /* Cutting depths at the limit may promise more codes than there are. One that is shorter becomes two of the next
     * length, its own and one for a symbol from the limit: each such step takes one code back, so it ends with exactly
     * as many as there are. Inflaters refuse a code that leaves any over. */
    uint32_t promised = 0;
    for (unsigned length = 1; length <= limit; length++) promised += counts[length] << (limit - length);
    for (; promised > 1u << limit; promised--) {
        unsigned length = limit - 1;
        while (!counts[length]) length--;
        counts[length]--, counts[length + 1] += 2, counts[limit]--;
    }
    int at = 0; /* the rarest get the longest */
    for (unsigned length = limit; length; length--)
        for (unsigned n = counts[length]; n; n--) it->length[sorted[at++] & 511] = (uint8_t)length;
}

/* ---- blocks ---- */

typedef struct {
    const uint8_t *raw;
    size_t size;
    uint32_t tokens[BLOCK]; /* a literal, or length << 16 | distance */
    int count;
    uint16_t often[LITERALS], apart[DISTANCES];
} block;

/* The bits a block's tokens take in given codes; UINT32_MAX if these lack one of its symbols. */
static uint32_t weigh(const block *it, const uint8_t *literals, const uint8_t *distances) {
    uint32_t total = 0, lacking = 0;
    for (int n = 0; n < LITERALS; n++) {
        total += (uint32_t)it->often[n] * literals[n];
        lacking |= literals[n] ? 0u : it->often[n];
    }
    for (int n = 265; n < LITERALS; n++) total += (uint32_t)it->often[n] * LENGTH_EXTRA[n - 257];
    for (unsigned n = 0; n < DISTANCES; n++) {
        total += it->apart[n] * (distances[n] + distance_extra(n));
        lacking |= distances[n] ? 0u : it->apart[n];
    }
    return lacking ? UINT32_MAX : total;
}

static void write_tokens(const block *it, const code *literals, const code *distances, bits *to) {
    bits here = *to;
    const uint32_t *token = it->tokens, *end = token + it->count;
    for (; token < end; token++) {
        unsigned length = *token >> 16;
        if (!length) {
            put(&here, literals->bits[*token], literals->length[*token]);
            if (here.count > 40) drain(&here);
            continue;
        }
        drain(&here);
        unsigned distance = *token & 0xffff, symbol = length_symbol(length);
        put(&here, literals->bits[257 + symbol], literals->length[257 + symbol]);
        put(&here, length - LENGTH_BASE[symbol], LENGTH_EXTRA[symbol]);
        symbol = distance_symbol(distance);
        put(&here, distances->bits[symbol], distances->length[symbol]);
        unsigned extra = distance_extra(symbol);
        put(&here, (distance - 1) & ((1u << extra) - 1), extra);
        drain(&here);
    }
    drain(&here);
    put(&here, literals->bits[END], literals->length[END]);
    drain(&here);
    *to = here;
}

/* The lengths of both codes as one run of symbols with repeats; returns how many. `value` holds symbol | extra << 8. */
static int run_lengths(const uint8_t *all, int count, uint16_t *value) {
    int written = 0;
    for (int at = 0; at < count;) {
        int run = 1;
        while (at + run < count && all[at + run] == all[at]) run++;
        int left = run;
        if (!all[at]) {
            for (int take; left >= 3; left -= take) {
                take = left < 138 ? left : 138;
                value[written++] = (uint16_t)(take < 11 ? 17 | (take - 3) << 8 : 18 | (take - 11) << 8);
            }
        } else {
            value[written++] = all[at], left--;
            for (int take; left >= 3; left -= take) {
                take = left < 6 ? left : 6;
                value[written++] = (uint16_t)(16 | (take - 3) << 8);
            }
        }
        for (; left; left--) value[written++] = all[at];
        at += run;
    }
    return written;
}

/* Writes what two codes are, for the inflater. */
static void write_codes(const code *by_literal, const code *by_distance, bits *to) {
    uint8_t all[LITERALS + DISTANCES];
    uint16_t value[LITERALS + DISTANCES], often[LENGTHS] = {0};
    code lengths;
    int literals = LITERALS, distances = DISTANCES, kinds = LENGTHS;
    while (literals > 257 && !by_literal->length[literals - 1]) literals--;
    while (distances > 1 && !by_distance->length[distances - 1]) distances--;
    memcpy(all, by_literal->length, (size_t)literals);
    memcpy(all + literals, by_distance->length, (size_t)distances);
    int runs = run_lengths(all, literals + distances, value);
    for (int n = 0; n < runs; n++) often[value[n] & 31]++;
    measure(often, LENGTHS, 7, &lengths);
    assign(&lengths, LENGTHS);
    while (kinds > 4 && !lengths.length[LENGTHS_ORDER[kinds - 1]]) kinds--;
    put(to, (unsigned)literals - 257, 5);
    put(to, (unsigned)distances - 1, 5);
    put(to, (unsigned)kinds - 4, 4);
    for (int n = 0; n < kinds; n++) {
        if (to->count > 40) drain(to);
        put(to, lengths.length[LENGTHS_ORDER[n]], 3);
    }
    for (int n = 0; n < runs; n++) {
        drain(to);
        unsigned symbol = value[n] & 31;
        put(to, lengths.bits[symbol], lengths.length[symbol]);
        put(to, value[n] >> 8, LENGTHS_EXTRA[symbol]);
    }
    drain(to);
}

/* A block as it is, behind the bit that says whether it is the last. */
static void store(const uint8_t *raw, size_t size, bits *to) {
    put(to, 0, 2);
    align(to);
    const uint8_t sizes[4] = {(uint8_t)size, (uint8_t)(size >> 8), (uint8_t)~size, (uint8_t)(~size >> 8)};
    memcpy(to->at, sizes, 4);
    if (size) memcpy(to->at + 4, raw, size);
    to->at += 4 + size;
}

/* Codes that fitted an object, ready to be used for others of its kind. */
struct codebook {
    code literals, distances;
    uint8_t begun[HEAD_MAX]; /* a block in these codes, up to its tokens */
    uint32_t begun_bits;     /* 0: no codes yet */
    uint32_t bits, size;     /* what the tokens of that object took, and its size */
};

enum {
    WORSE_MAX = 1, /* how much worse than the object they were made for others may fare, in parts of 32 */
    REMEMBERED_MAX = 24, /* symbols kept although the newest object lacks them */
};

static int fits(const codebook *book, const block *it, uint32_t weight) {
    return weight != UINT32_MAX && (uint64_t)weight * book->size * 32 <= (uint64_t)book->bits * it->size * (32 + WORSE_MAX);
}

/* Adds to symbols those that had a code before, unless they are many: they are likely to come again. */
static void remember(const uint16_t *now, const uint8_t *before, int size, uint16_t *often) {
    int more = 0;
    for (int n = 0; n < size; n++) more += !now[n] && before[n];
    for (int n = 0; n < size; n++) often[n] = now[n] || more > REMEMBERED_MAX ? now[n] : before[n] != 0;
}

static void make_codes(const block *it, codebook *book) {
    bits begun = {book->begun, 0, 0};
    uint16_t often[LITERALS], apart[DISTANCES];
    remember(it->often, book->literals.length, LITERALS, often);
    remember(it->apart, book->distances.length, DISTANCES, apart);
    measure(often, LITERALS, 15, &book->literals);
    measure(apart, DISTANCES, 15, &book->distances);
    assign(&book->literals, LITERALS);
    assign(&book->distances, DISTANCES);
    put(&begun, 2, 2);
    write_codes(&book->literals, &book->distances, &begun);
    begun.at[0] = (uint8_t)begun.held;
    book->begun_bits = (uint32_t)(begun.at - book->begun) * 8 + begun.count;
    book->bits = weigh(it, book->literals.length, book->distances.length);
    book->size = (uint32_t)it->size;
}

static void write_block(block *it, codebook *book, int last, bits *to) {
    uint8_t fixed_literals[LITERALS + 2], fixed_distances[DISTANCES + 2];
    it->often[END] = 1;
    for (int n = 0; n < LITERALS + 2; n++) fixed_literals[n] = n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8;
    memset(fixed_distances, 5, sizeof fixed_distances);
    uint32_t fixed = weigh(it, fixed_literals, fixed_distances), stored = 8 * ((uint32_t)it->size + 4) + 7;
    uint32_t own = book->begun_bits ? weigh(it, book->literals.length, book->distances.length) : UINT32_MAX;
    if (!book->begun_bits || !fits(book, it, own)) {
        make_codes(it, book);
        own = book->bits;
    }
    own += book->begun_bits;
    drain(to);
    put(to, (unsigned)last, 1);
    if (stored < own && stored < fixed) {
        store(it->raw, it->size, to);
    } else if (fixed <= own) {
        code literals, distances;
        memcpy(literals.length, fixed_literals, sizeof fixed_literals);
        memcpy(distances.length, fixed_distances, sizeof fixed_distances);
        assign(&literals, LITERALS + 2);
        assign(&distances, DISTANCES + 2);
        put(to, 1, 2);
        write_tokens(it, &literals, &distances, to);
    } else {
        uint32_t left = book->begun_bits;
        for (const uint8_t *from = book->begun; left; from++) {
            unsigned take = left < 8 ? left : 8;
            put(to, *from & ((1u << take) - 1), take);
            left -= take;
            if (to->count > 40) drain(to);
        }
        drain(to);
        write_tokens(it, &book->literals, &book->distances, to);
    }
}

/* ---- repetitions ---- */

/* The bytes a match begins with, as a number. */
static inline uint64_t beginning(const uint8_t *at) {
    uint64_t value = 0;
    for (int n = 0; n < MATCH_MIN; n++) value |= (uint64_t)at[n] << (8 * n);
    return value;
}

static inline unsigned place(uint64_t value) { return (unsigned)((value * 0x9e3779b97f4a7c15u) >> (64 - HASH_BITS)); }

static inline unsigned alike(const uint8_t *one, const uint8_t *other, unsigned most) {
    unsigned same = MATCH_MIN;
    for (; same + 8 <= most; same += 8) {
        uint64_t a, b;
        memcpy(&a, one + same, 8);
        memcpy(&b, other + same, 8);
        if (a != b) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return same + ((unsigned)__builtin_ctzll(a ^ b) >> 3);
#else
            return same + ((unsigned)__builtin_clzll(a ^ b) >> 3);
#endif
        }
    }
    while (same < most && one[same] == other[same]) same++;
    return same;
}

static void deflate_all(const uint8_t *raw, size_t size, codebook *book, bits *to) {
    /* Where a beginning was met last, counted from behind a window: what was never met is then too far away. */
    uint32_t seen[1 << HASH_BITS];
    block it;
    size_t at = 0, comparable = size < MATCH_MIN ? 0 : size - MATCH_MIN + 1;
    memset(seen, 0, sizeof seen);
    do {
        const size_t begin = at, stop = size - begin < BLOCK ? size : begin + BLOCK;
        const size_t hashed = comparable < stop ? comparable : stop;
        uint32_t *token = it.tokens, barren = 0;
        it.raw = raw + begin;
        memset(it.often, 0, sizeof it.often);
        memset(it.apart, 0, sizeof it.apart);
        while (at < hashed) {
            const uint64_t here = beginning(raw + at);
            const uint32_t now = (uint32_t)at + WINDOW + 1;
            uint32_t *slot = &seen[place(here)];
            const uint32_t distance = now - *slot;
            *slot = now;
            if (distance > WINDOW || beginning(raw + at - distance) != here) {
                /* The longer nothing repeats, the fewer places are looked at: digests and keys have no repetitions. */
                size_t next = at + 1 + (barren++ >> PATIENCE_BITS);
                for (next = next < hashed ? next : hashed; at < next; at++) it.often[raw[at]]++, *token++ = raw[at];
                continue;
            }
            barren = 0;
            const unsigned found = alike(raw + at, raw + at - distance, size - at < MATCH_MAX ? (unsigned)(size - at) : MATCH_MAX);
            it.often[257 + length_symbol(found)]++;
            it.apart[distance_symbol(distance)]++;
            *token++ = found << 16 | distance;
            at += found;
            if (at <= comparable) seen[place(beginning(raw + at - 1))] = (uint32_t)at + WINDOW;
        }
        for (; at < stop; at++) it.often[raw[at]]++, *token++ = raw[at];
        it.count = (int)(token - it.tokens);
        it.size = at - begin;
        write_block(&it, book, at == size, to);
    } while (at < size);
}

/* ---- zlib's frame ---- */

HIDDEN uint32_t zlib_sum(const uint8_t *raw, size_t size) {
    uint32_t a = 1, b = 0;
    while (size) {
        size_t run = size < 5552 ? size : 5552; /* as many as cannot overflow */
        size -= run;
        for (; run >= 32; run -= 32, raw += 32) {
            uint32_t sum = 0, slope = 0;
            for (uint32_t n = 0; n < 32; n++) sum += raw[n], slope += (32 - n) * raw[n];
            b += 32 * a + slope;
            a += sum;
        }
        for (; run; run--) a += *raw++, b += a;
        a %= 65521, b %= 65521;
    }
    return b << 16 | a;
}

HIDDEN size_t zlib_bound(size_t size) { return size + (size / BLOCK + 1) * 16 + 64; }

static void frame(const uint8_t *raw, size_t size, uint8_t *begin, uint8_t *end) {
    uint32_t sum = zlib_sum(raw, size);
    begin[0] = 0x78, begin[1] = 0x01;
    for (int n = 0; n < 4; n++) end[n] = (uint8_t)(sum >> (24 - 8 * n));
}

HIDDEN size_t zlib_pack(const uint8_t *raw, size_t size, codebook *book, uint8_t *out) {
    bits to = {out + 2, 0, 0};
    deflate_all(raw, size, book, &to);
    align(&to);
    frame(raw, size, out, to.at);
    return (size_t)(to.at + 4 - out);
}

HIDDEN size_t zlib_store(const uint8_t *raw, size_t size, uint8_t *out) {
    bits to = {out + 2, 0, 0};
    put(&to, 1, 1);
    store(raw, size, &to);
    frame(raw, size, out, to.at);
    return (size_t)(to.at + 4 - out);
}

HIDDEN codebook *codebooks(size_t count) { return calloc(count, sizeof(codebook)); }

HIDDEN codebook *codebook_at(codebook *books, size_t at) { return books + at; }
