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

/* The 64 bytes of 88 characters of base64 that have one spelling only. */
static int is_signature(const uint8_t *text, uint8_t *out) {
    uint32_t bits = 0;
    if (text[86] != '=' || text[87] != '=') return 0;
    for (int i = 0; i < 86; i++) {
        uint8_t c = text[i];
        int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                    : c >= 'a' && c <= 'z' ? c - 'a' + 26
                    : c >= '0' && c <= '9' ? c - '0' + 52
                    : c == '+'             ? 62
                    : c == '/'             ? 63
                                           : -1;
        if (digit < 0) return 0;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 == 1) *out++ = (uint8_t)(bits >> 4);
        if (i % 4 == 2) *out++ = (uint8_t)(bits >> 2);
        if (i % 4 == 3) *out++ = (uint8_t)bits;
    }
    return !(bits & 15);
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

/* For each of the lines that lie end to end: the template that it fits, or -1; where its payload ends; and whether the
 * payload was held against its hash, which is left to the caller above one chunk. Decoded signatures go to `sigs`. */
EXPORT int32_t ropewalk_cast(const uint8_t *raw, const uint64_t *ends, uint64_t count, const uint8_t *moulds,
                             const uint64_t *mould_ends, uint64_t mould_count, int32_t (*out)[3], uint8_t (*sigs)[SIG]) {
    const uint8_t *payloads[GROUP];
    uint32_t sizes[GROUP];
    uint64_t lines[GROUP], last = 0;
    uint8_t hashes[GROUP][32];
    int waiting = 0;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !mould_count) return -1;
    for (uint64_t i = 0, begin = 0; i < count; begin = ends[i++]) {
        out[i][0] = -1, out[i][1] = out[i][2] = 0;
        if (ends[i] < begin || ends[i] - begin > INT32_MAX) return -1;
        for (uint64_t tried = 0; tried < mould_count; tried++) { /* the next line often fits the next template */
            const uint64_t m = (last + tried) % mould_count, from = m ? mould_ends[3 * m - 1] : 0;
            const size_t stop = fit(raw + begin, ends[i] - begin, moulds, mould_ends + 3 * m, from, sigs[i]);
            if (!stop) continue;
            const size_t head = mould_ends[3 * m] - from;
            out[i][0] = (int32_t)m, out[i][1] = (int32_t)stop, last = m + 1;
            if (stop - head <= HASH_SHORT_MAX) {
                payloads[waiting] = raw + begin + head, sizes[waiting] = (uint32_t)(stop - head);
                lines[waiting++] = i;
            }
            break;
        }
        if (waiting < GROUP && (i + 1 < count || !waiting)) continue;
        hash_short(payloads, sizes, waiting, hashes);
        for (; waiting; waiting--) {
            const uint64_t line = lines[waiting - 1];
            const uint8_t *hash = payloads[waiting - 1] + sizes[waiting - 1] + strlen(",\"payload_hash\":\"");
            if (is_hex(hash, hashes[waiting - 1])) out[line][2] = 1;
            else out[line][0] = -1;
        }
    }
    return 0;
}
