/* Which JSON texts are surely canonical (RFC 8785), and which envelopes surely fit a template. "Surely" is on the safe
 * side: escapes of control characters, doubles, long integers, deep nesting and keys beyond ASCII are left to Python,
 * which defines the right answer. */
#include "native.h"

#include <string.h>

enum { DEPTH_MAX = 64, DIGITS_MAX = 15, GROUP = 64, HEX = 64, SIG = 64, SIG_TEXT = 88 };

/* Past one character of two to four bytes, well-formed by RFC 3629; NULL otherwise. */
static const uint8_t *wide(const uint8_t *at, const uint8_t *end) {
    uint8_t lead = at[0], low = 0x80, high = 0xBF;
    int more = lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : lead >= 0xF0 && lead < 0xF5 ? 3 : 0;
    if (!more || end - at <= more) return NULL;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F; /* no surrogates */
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i <= more; i++, low = 0x80, high = 0xBF)
        if (at[i] < low || at[i] > high) return NULL;
    return at + more + 1;
}

/* Whether eight bytes are all plain characters of a string: no quote, no escape, ASCII. */
static int plain(const uint8_t *at) {
    const uint64_t each = 0x0101010101010101u;
    uint64_t word;
    memcpy(&word, at, sizeof word);
    const uint64_t quote = word ^ each * '"', escape = word ^ each * '\\';
    return !((word | (word - each * 0x20) | (quote - each) | (escape - each)) & each * 0x80);
}

/* Past a string that begins behind its quote; a key has neither escapes nor characters beyond ASCII. */
static const uint8_t *string(const uint8_t *at, const uint8_t *end, int key) {
    while (at && at < end) {
        if (end - at >= 8 && plain(at)) {
            at += 8;
            continue;
        }
        if (*at == '"') return at + 1;
        if (*at < 0x20) return NULL;
        if (*at >= 0x80) at = key ? NULL : wide(at, end);
        else if (*at != '\\') at++;
        else if (key || end - at < 2 || !at[1] || !strchr("\"\\bfnrt", at[1])) return NULL;
        else at += 2;
    }
    return NULL;
}

static const uint8_t *integer(const uint8_t *at, const uint8_t *end) {
    const int minus = *at == '-';
    const uint8_t *const first = at += minus;
    while (at < end && *at >= '0' && *at <= '9') at++;
    if (at == first || at - first > DIGITS_MAX || (*first == '0' && (minus || at - first > 1))) return NULL;
    return at < end && (*at == '.' || *at == 'e' || *at == 'E') ? NULL : at;
}

static const uint8_t *word(const uint8_t *at, const uint8_t *end, const char *text) {
    size_t size = strlen(text);
    return (size_t)(end - at) >= size && !memcmp(at, text, size) ? at + size : NULL;
}

/* Past one value that is surely canonical; NULL otherwise. */
static const uint8_t *value(const uint8_t *at, const uint8_t *end, int room) {
    const uint8_t *last = NULL;
    size_t last_size = 0;
    if (at >= end) return NULL;
    const uint8_t opener = *at;
    if (opener == '"') return string(at + 1, end, 0);
    if (opener == 't') return word(at, end, "true");
    if (opener == 'f') return word(at, end, "false");
    if (opener == 'n') return word(at, end, "null");
    if (opener != '{' && opener != '[') return integer(at, end);
    const uint8_t closer = opener == '{' ? '}' : ']';
    if (!room || ++at >= end) return NULL;
    if (*at == closer) return at + 1;
    for (;; at++) {
        if (opener == '{') {
            if (at >= end || *at != '"') return NULL;
            const uint8_t *key = at + 1;
            if (!(at = string(key, end, 1))) return NULL;
            size_t size = (size_t)(at - key) - 1;
            if (last) { /* keys rise: sorted, and none twice */
                int order = memcmp(last, key, last_size < size ? last_size : size);
                if (order > 0 || (!order && last_size >= size)) return NULL;
            }
            last = key, last_size = size;
            if (at >= end || *at++ != ':') return NULL;
        }
        if (!(at = value(at, end, room - 1)) || at >= end) return NULL;
        if (*at == closer) return at + 1;
        if (*at != ',') return NULL;
    }
}

/* For each line of a text 1 if it is surely a canonical object, else 0; every line ends in a newline. Returns how many
 * lines there are, -1 if more than `room`. */
EXPORT int64_t ropewalk_canonical_lines(const uint8_t *raw, uint64_t size, uint64_t room, uint8_t *out) {
    const uint8_t *const end = raw + size;
    uint64_t count = 0;
    for (const uint8_t *stop; raw < end; raw = stop + 1) {
        stop = memchr(raw, '\n', (size_t)(end - raw));
        if (!stop || count == room) return -1;
        out[count++] = raw < stop && *raw == '{' && value(raw, stop, DEPTH_MAX) == stop;
    }
    return (int64_t)count;
}

static int number(const uint8_t *at, int digits) {
    int found = 0;
    for (; digits--; at++) {
        if (*at < '0' || *at > '9') return -1;
        found = 10 * found + *at - '0';
    }
    return found;
}

/* Whether this is a time as envelopes have it: 2024-11-01T12:00:00Z, with up to nine digits of a fraction. */
static int is_time(const uint8_t *at, size_t size) {
    if (size < 20 || size == 21 || size > 30 || at[size - 1] != 'Z') return 0;
    if (at[4] != '-' || at[7] != '-' || at[10] != 'T' || at[13] != ':' || at[16] != ':') return 0;
    int year = number(at, 4), month = number(at + 5, 2), day = number(at + 8, 2);
    int hour = number(at + 11, 2), minute = number(at + 14, 2), second = number(at + 17, 2);
    if (year < 1 || month < 1 || month > 12 || day < 1 || hour < 0 || hour > 23) return 0;
    if (minute < 0 || minute > 59 || second < 0 || second > 59) return 0;
    int leap = !(year % 4) && (year % 100 || !(year % 400));
    int days = month == 2 ? 28 + leap : month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
    if (day > days) return 0;
    return size == 20 || (at[19] == '.' && number(at + 20, (int)size - 21) >= 0);
}

/* The digits of base64, each one more than it stands for; 0 for all other bytes. */
static const uint8_t DIGITS[256] = {
    ['A'] = 1, ['B'] = 2, ['C'] = 3, ['D'] = 4, ['E'] = 5, ['F'] = 6, ['G'] = 7, ['H'] = 8, ['I'] = 9,
    ['J'] = 10, ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16, ['Q'] = 17, ['R'] = 18,
    ['S'] = 19, ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24, ['Y'] = 25, ['Z'] = 26, ['a'] = 27,
    ['b'] = 28, ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32, ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36,
    ['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40, ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45,
    ['t'] = 46, ['u'] = 47, ['v'] = 48, ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54,
    ['2'] = 55, ['3'] = 56, ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['+'] = 63,
    ['/'] = 64,
};

/* The 64 bytes of 88 characters of base64 that have one spelling only. */
static int is_signature(const uint8_t *text, uint8_t *out) {
    uint32_t bits = 0, all = 0;
    if (text[86] != '=' || text[87] != '=') return 0;
    for (int i = 0; i < 86; i++) {
        const uint32_t digit = (uint32_t)DIGITS[text[i]] - 1; /* no branch on it: signatures look like chance */
        all |= digit;
        bits = bits << 6 | (digit & 63);
        if (i % 4 == 1) *out++ = (uint8_t)(bits >> 4);
        if (i % 4 == 2) *out++ = (uint8_t)(bits >> 2);
        if (i % 4 == 3) *out++ = (uint8_t)bits;
    }
    return all < 64 && !(bits & 15);
}

static int is_hex(const uint8_t *text, const uint8_t hash[32]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++)
        if (text[2 * i] != digits[hash[i] >> 4] || text[2 * i + 1] != digits[hash[i] & 15]) return 0;
    return 1;
}

/* Where the payload of a line ends if the line is `head payload ,"payload_hash":"hash" middle sig tail time "}` with the
 * three parts of a template; 0 if it surely is not, or not surely. The hash is left to the caller. */
static size_t fit(const uint8_t *raw, size_t size, const uint8_t *mould, const uint64_t *ends, uint64_t begin,
                  uint8_t *sig) {
    static const char HASH_KEY[] = ",\"payload_hash\":\"";
    const size_t key = sizeof HASH_KEY - 1, head = ends[0] - begin, middle = ends[1] - ends[0], tail = ends[2] - ends[1];
    const size_t fixed = key + HEX + middle + SIG_TEXT + tail;
    const uint8_t *const end = raw + size, *at;
    if (size < head + fixed + 2 || memcmp(raw, mould + begin, head)) return 0;
    if (!(at = value(raw + head, end, DEPTH_MAX)) || (size_t)(end - at) < fixed + 2) return 0;
    const size_t stop = (size_t)(at - raw);
    if (memcmp(at, HASH_KEY, key) || (stop == head + 4 && raw[head] == 'n')) return 0;
    at += key + HEX;
    if (memcmp(at, mould + ends[0], middle) || memcmp(at + middle + SIG_TEXT, mould + ends[1], tail)) return 0;
    if (!is_signature(at + middle, sig)) return 0;
    at += middle + SIG_TEXT + tail;
    return memcmp(end - 2, "\"}", 2) || !is_time(at, (size_t)(end - 2 - at)) ? 0 : stop;
}

/* What the loop knows of the templates: three parts of each around its payload, and three of what its author signs,
 * split at hash and time; `hash_first` says which comes first. */
typedef struct {
    const uint8_t *raw, *signs, *hash_first;
    const uint64_t *ends, *sign_ends;
    uint64_t count;
} templates;

/* Write a signature, then what it signs; returns where that ends, NULL if there is no room. */
static uint8_t *write_signed(const templates *of, uint64_t m, const uint8_t *sig, const uint8_t *hash,
                             const uint8_t *stamp, size_t stamp_size, uint8_t *at, const uint8_t *end) {
    const uint64_t from = m ? of->sign_ends[3 * m - 1] : 0, *ends = of->sign_ends + 3 * m;
    const int first = of->hash_first[m];
    if ((size_t)(end - at) < SIG + HEX + stamp_size + (ends[2] - from)) return NULL;
    memcpy(at, sig, SIG), at += SIG;
    memcpy(at, of->signs + from, ends[0] - from), at += ends[0] - from;
    memcpy(at, first ? hash : stamp, first ? HEX : stamp_size), at += first ? HEX : stamp_size;
    memcpy(at, of->signs + ends[0], ends[1] - ends[0]), at += ends[1] - ends[0];
    memcpy(at, first ? stamp : hash, first ? stamp_size : HEX), at += first ? stamp_size : HEX;
    memcpy(at, of->signs + ends[1], ends[2] - ends[1]), at += ends[2] - ends[1];
    return at;
}

typedef struct {
    const uint8_t *raw[GROUP];
    uint32_t sizes[GROUP];
    uint64_t lines[GROUP];
    int count;
} waiting;

static void wait_for(waiting *it, const uint8_t *raw, size_t size, uint64_t line) {
    it->raw[it->count] = raw, it->sizes[it->count] = (uint32_t)size, it->lines[it->count++] = line;
}

/* For each of the lines that lie end to end: the template that it fits, or -1; where its payload ends; and what was
 * hashed: 1 if the payload was held against its hash, 2 if `intents` has the hash of what the author signs; both are
 * left to the caller above one chunk. `out_signed` takes for each line that fits its signature and what it signs, and
 * `out_ends` where these end. */
EXPORT int32_t ropewalk_cast(const uint8_t *raw, const uint64_t *ends, uint64_t count, const uint8_t *moulds,
                             const uint64_t *mould_ends, const uint8_t *signs, const uint64_t *sign_ends,
                             const uint8_t *hash_first, uint64_t mould_count, int32_t (*out)[3], uint8_t *out_signed,
                             uint64_t room, uint64_t *out_ends, uint8_t (*intents)[32]) {
    const templates of = {moulds, signs, hash_first, mould_ends, sign_ends, mould_count};
    const uint8_t *const out_end = out_signed + room;
    uint8_t hashes[GROUP][32], sig[SIG], *at = out_signed;
    waiting payloads = {.count = 0}, statements = {.count = 0};
    uint64_t last = 0;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !mould_count) return -1;
    for (uint64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
        out[i][0] = -1, out[i][1] = out[i][2] = 0;
        if (ends[i] < begin || ends[i] - begin > INT32_MAX) return -1;
        const uint8_t *const line = raw + begin;
        for (uint64_t tried = 0; tried < of.count; tried++) { /* the next line often fits the next template */
            const uint64_t m = (last + tried) % of.count, from = m ? of.ends[3 * m - 1] : 0;
            const size_t stop = fit(line, ends[i] - begin, of.raw, of.ends + 3 * m, from, sig);
            if (!stop) continue;
            const size_t head = of.ends[3 * m] - from, around = of.ends[3 * m + 2] - of.ends[3 * m];
            const uint8_t *const hash = line + stop + strlen(",\"payload_hash\":\"");
            const uint8_t *const stamp = hash + HEX + SIG_TEXT + around, *const signs_at = at + SIG;
            const size_t stamp_size = (size_t)(raw + ends[i] - 2 - stamp);
            if (!(at = write_signed(&of, m, sig, hash, stamp, stamp_size, at, out_end))) return -1;
            out[i][0] = (int32_t)m, out[i][1] = (int32_t)stop, last = m + 1;
            if (stop - head <= HASH_SHORT_MAX) wait_for(&payloads, line + head, stop - head, i);
            if (at - signs_at <= HASH_SHORT_MAX) wait_for(&statements, signs_at, (size_t)(at - signs_at), i);
            break;
        }
        out_ends[i] = (uint64_t)(at - out_signed);
        if (payloads.count < GROUP && statements.count < GROUP && i + 1 < count) continue;
        hash_short(payloads.raw, payloads.sizes, payloads.count, hashes);
        for (; payloads.count; payloads.count--) {
            const int n = payloads.count - 1;
            const uint8_t *hash = payloads.raw[n] + payloads.sizes[n] + strlen(",\"payload_hash\":\"");
            if (is_hex(hash, hashes[n])) out[payloads.lines[n]][2] |= 1;
            else out[payloads.lines[n]][0] = -1;
        }
        hash_short(statements.raw, statements.sizes, statements.count, hashes);
        for (; statements.count; statements.count--) {
            const int n = statements.count - 1;
            memcpy(intents[statements.lines[n]], hashes[n], 32);
            out[statements.lines[n]][2] |= 2;
        }
    }
    return 0;
}

/* For each of the messages that lie end to end, a signature and what it signs: 1 if it surely holds under its Ed25519
 * key, else 0. `open` is libsodium's crypto_sign_open. An R that is refused, and an S near the order of the group, are
 * left to Python, which defines the verdict; so is a message without a key, whose number is -1. */
EXPORT int32_t ropewalk_signed(int (*open)(uint8_t *, unsigned long long *, const uint8_t *, unsigned long long,
                                           const uint8_t *),
                               const uint8_t *raw, const uint64_t *ends, uint64_t count, const uint8_t (*keys)[32],
                               uint64_t key_count, const int32_t *key_of, const uint8_t (*refused)[32],
                               uint64_t refused_count, uint8_t *out) {
    for (uint64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
        int sure = key_of[i] >= 0 && (uint64_t)key_of[i] < key_count;
        if (ends[i] < begin) return -1;
        sure = sure && ends[i] - begin >= SIG && raw[begin + SIG - 1] < 0x10;
        for (uint64_t n = 0; sure && n < refused_count; n++) sure = memcmp(raw + begin, refused[n], 32) != 0;
        out[i] = sure && !open(NULL, NULL, raw + begin, ends[i] - begin, keys[key_of[i]]);
    }
    return 0;
}
