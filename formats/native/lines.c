/* Messages as lines of JSON or rows of CSV, byte for byte as `recover.export.write` produces them. It may only say yes:
 * a record whose line depends on more than its own bytes (a compressed body, an IPv6 host, names or values that are not
 * ASCII, a duplicate property) is left to Python. */
#include "kernels.h"
#include "layout.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MOST_PROPERTIES = 64,
       /* bytes of a line besides the record's content, and the largest expansion of a byte: twice \u001f escaped */
       FIXED = 2048, WIDEST = 12,
       /* for a row of CSV, in record sizes: distance to the scratch area for properties, and the total room needed */
       APART = 16, ROOM_APART = 40 };

typedef struct { const uint8_t *name, *split, *end; } property;

/* Output position of a line: there is room for the largest expansion of a record, and for 16 more bytes. */
typedef struct { uint8_t *at; bool csv, begun; } output;

PART void put(output *out, const char *text) {
    size_t size = strlen(text);
    memcpy(out->at, text, size);
    out->at += size;
}

PART void put_number(output *out, int64_t value) {
    uint8_t digits[20], *first = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--first = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0) *--first = '-';
    memcpy(out->at, first, (size_t)(digits + sizeof digits - first));
    out->at += digits + sizeof digits - first;
}

static void put_hex(output *out, const uint8_t *data, int size) {
    static const char digits[] = "0123456789ABCDEF";
    for (int k = 0; k < size; k++) {
        *out->at++ = (uint8_t)digits[data[k] >> 4];
        *out->at++ = (uint8_t)digits[data[k] & 15];
    }
}

/* Write a byte below 32, a quote or a backslash as JSON escapes it. */
static void put_escaped(output *out, uint8_t octet) {
    static const char digits[] = "0123456789abcdef";
    uint8_t brief = 0;
    switch (octet) {
    case '"': case '\\': brief = octet; break;
    case '\b': brief = 'b'; break;
    case '\t': brief = 't'; break;
    case '\n': brief = 'n'; break;
    case '\f': brief = 'f'; break;
    case '\r': brief = 'r'; break;
    }
    *out->at++ = '\\';
    if (brief) {
        *out->at++ = brief;
        return;
    }
    put(out, "u00");
    *out->at++ = (uint8_t)digits[octet >> 4];
    *out->at++ = (uint8_t)digits[octet & 15];
}

/* Length of the UTF-8 sequence that begins at `p` with a byte above 127; 0 if invalid. */
static int64_t sequence(const uint8_t *p, const uint8_t *stop) {
    uint8_t first = *p;
    int64_t length = first >= 0xC2 && first <= 0xDF ? 2 : (first & 0xF0) == 0xE0 ? 3 : first >= 0xF0 && first <= 0xF4 ? 4 : 0;
    if (!length || length > stop - p) return 0;
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (int k = 2; k < length; k++)
        if ((p[k] & 0xC0) != 0x80) return 0;
    return length;
}

/* Write text up to `stop` as the inside of a quoted string; false if it is not UTF-8. CSV only doubles quotes. */
static bool put_text(output *out, const uint8_t *p, const uint8_t *stop) {
    uint8_t first_plain = out->csv ? 0 : 32, backslash = out->csv ? '"' : '\\';
    while (p < stop) {
#if defined(__SSE2__)
        while (stop - p >= 16) {
            __m128i block = _mm_loadu_si128((const __m128i *)p);
            /* compared as signed numbers, bytes above 127 are less than those, too */
            __m128i special = _mm_or_si128(_mm_cmplt_epi8(block, _mm_set1_epi8((char)first_plain)),
                                           _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')),
                                                        _mm_cmpeq_epi8(block, _mm_set1_epi8((char)backslash))));
            int marks = _mm_movemask_epi8(special), plain = marks ? __builtin_ctz((unsigned)marks) : 16;
            _mm_storeu_si128((__m128i *)out->at, block);
            p += plain, out->at += plain;
            if (marks) break;
        }
        if (p == stop) break;
#endif
        uint8_t octet = *p;
        if (octet >= 128) {
            int64_t length = sequence(p, stop);
            if (!length) return false;
            memcpy(out->at, p, (size_t)length);
            p += length, out->at += length;
            continue;
        }
        if (octet >= first_plain && octet != '"' && octet != backslash) *out->at++ = octet;
        else if (out->csv) put(out, "\"\"");
        else put_escaped(out, octet);
        p++;
    }
    return true;
}

static void put_base64(output *out, const uint8_t *p, const uint8_t *stop) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; p < stop; p += 3) {
        int64_t left = stop - p;
        uint32_t group = (uint32_t)p[0] << 16 | (left > 1 ? (uint32_t)p[1] << 8 : 0) | (left > 2 ? p[2] : 0);
        *out->at++ = (uint8_t)digits[group >> 18];
        *out->at++ = (uint8_t)digits[group >> 12 & 63];
        *out->at++ = left > 1 ? (uint8_t)digits[group >> 6 & 63] : '=';
        *out->at++ = left > 2 ? (uint8_t)digits[group & 63] : '=';
    }
}

/* Find the properties that brokers see; return their number, -1 if the text is not plain. */
static int split(const uint8_t *p, const uint8_t *stop, property *items) {
    int count = 0;
    for (; p < stop; p++) {
        const uint8_t *name = p, *split = NULL;
        for (; p < stop && *p != 2; p++) {
            if (*p == 0 || *p >= 128) return -1;
            if (*p == 1 && !split) split = p;
        }
        if (!split || split == name || split + 1 >= p) continue;
        if (count == MOST_PROPERTIES) return -1;
        for (int k = 0; k < count; k++)
            if (items[k].split - items[k].name == split - name && !memcmp(name, items[k].name, (size_t)(split - name)))
                return -1;
        items[count++] = (property){name, split, p};
    }
    return count;
}

/* Write what precedes a field's value: a separator and, in JSON, its name. */
static void put_name(output *out, const char *name) {
    if (!out->csv) {
        put(out, out->begun ? ",\"" : "{\"");
        put(out, name);
        put(out, "\":");
    } else if (out->begun) {
        put(out, ",");
    }
    out->begun = true;
}

static void put_null(output *out, const char *name) {
    put_name(out, name);
    if (!out->csv) put(out, "null");
}

static void put_int(output *out, const char *name, int64_t value) {
    put_name(out, name);
    put_number(out, value);
}

static void put_word(output *out, const char *name, const char *value) {
    put_name(out, name);
    put(out, "\"");
    put(out, value);
    put(out, "\"");
}

/* Write text of a record; false, with nothing written, if it is not UTF-8. */
static bool put_string(output *out, const uint8_t *p, const uint8_t *stop) {
    uint8_t *before = out->at;
    *out->at++ = '"';
    if (!put_text(out, p, stop)) {
        out->at = before;
        return false;
    }
    *out->at++ = '"';
    return true;
}

static void put_host(output *out, const char *name, const uint8_t *ip, const uint8_t *port) {
    put_name(out, name);
    put(out, "\"");
    for (int k = 0; k < 4; k++) {
        put_number(out, ip[k]);
        *out->at++ = k < 3 ? '.' : ':';
    }
    put_number(out, i32_at(port));
    put(out, "\"");
}

/* Write the value of a property, or null. */
static void put_property(output *out, const char *field, const property *items, int count, const char *name) {
    size_t size = strlen(name);
    for (int k = 0; k < count; k++)
        if ((size_t)(items[k].split - items[k].name) == size && !memcmp(items[k].name, name, size)) {
            put_name(out, field);
            put_string(out, items[k].split + 1, items[k].end);
            return;
        }
    put_null(out, field);
}

/* Write all properties as a JSON object. */
static void put_object(output *out, const property *items, int count) {
    *out->at++ = '{';
    for (int k = 0; k < count; k++) {
        if (k) put(out, ",");
        put_string(out, items[k].name, items[k].split);
        put(out, ":");
        put_string(out, items[k].split + 1, items[k].end);
    }
    *out->at++ = '}';
}

static bool is_plain_name(const uint8_t *p, const uint8_t *stop) {
    if (p == stop) return false;
    for (; p < stop; p++)
        if (*p <= 32 || *p >= 127 || *p == '"' || *p == '\\') return false;
    return true;
}

/* Where records were read: a file as the beginning of a text, without its end, and the position in it. */
typedef struct { const uint8_t *file; int64_t size, position; } origin;

/* Write the line of a record; false, and the output is to be discarded, for one that is in doubt. */
static bool put_line(output *out, const uint8_t *record, int64_t size, const origin *place) {
    const uint8_t *end = record + size;
    if (size < HEAD_SIZE + 4 || i32_at(record) != size) return false;
    int32_t magic = (int32_t)u32_at(record + OFFSET_MAGIC);
    int64_t sys_flag = i32_at(record + OFFSET_SYS_FLAG), length = i32_at(record + OFFSET_BODY_LENGTH);
    if (sys_flag & (BORNHOST_V6 | STOREHOST_V6 | COMPRESSED) || (magic != MAGIC_V1 && magic != MAGIC_V2)) return false;
    const uint8_t *body = record + HEAD_SIZE;
    if (length < 0 || length + 4 > end - body) return false;
    const uint8_t *body_end = body + length, *topic = body_end + (magic == MAGIC_V1 ? 1 : 2);
    length = magic == MAGIC_V1 ? (int8_t)*body_end : i16_at(body_end);
    if (length < 0 || length + 2 > end - topic) return false;
    const uint8_t *topic_end = topic + length, *properties = topic_end + 2;
    if (i16_at(topic_end) != end - properties || !is_plain_name(topic, topic_end)) return false;
    property items[MOST_PROPERTIES];
    int count = split(properties, end, items);
    if (count < 0) return false;
    out->begun = false;
    put_name(out, "topic");
    put_string(out, topic, topic_end);
    put_int(out, "queue", i32_at(record + OFFSET_QUEUE_ID));
    put_int(out, "queue_offset", i64_at(record + OFFSET_QUEUE_OFFSET));
    put_int(out, "phy_offset", i64_at(record + OFFSET_PHY_OFFSET));
    put_int(out, "size", size);
    put_word(out, "state", "live");
    put_int(out, "store_time", i64_at(record + OFFSET_STORE_TIMESTAMP));
    put_int(out, "born_time", i64_at(record + OFFSET_BORN_TIMESTAMP));
    put_host(out, "born_host", record + OFFSET_BORN_HOST, record + OFFSET_BORN_PORT);
    put_host(out, "store_host", record + OFFSET_STORE_HOST, record + OFFSET_STORE_PORT);
    put_name(out, "msg_id");
    *out->at++ = '"';
    put_hex(out, record + OFFSET_STORE_HOST, 8);
    put_hex(out, record + OFFSET_PHY_OFFSET, 8);
    *out->at++ = '"';
    put_property(out, "unique_key", items, count, "UNIQ_KEY");
    put_property(out, "keys", items, count, "KEYS");
    put_property(out, "tags", items, count, "TAGS");
    put_int(out, "flag", i32_at(record + OFFSET_FLAG));
    put_int(out, "sys_flag", sys_flag);
    int64_t kind = sys_flag & TRANSACTION;
    put_word(out, "transaction", kind == 0 ? "none" : kind == TRANSACTION_ROLLBACK ? "rollback" :
             kind == TRANSACTION_COMMIT ? "commit" : "half");
    put_int(out, "reconsume_times", i32_at(record + OFFSET_RECONSUME_TIMES));
    put_name(out, "properties");
    if (out->csv) {
        output apart = {.at = out->at + APART * size};
        uint8_t *text = apart.at;
        put_object(&apart, items, count);
        put_string(out, text, apart.at);
    } else {
        put_object(out, items, count);
    }
    put_name(out, "body");
    bool is_text = put_string(out, body, body_end);
    if (!is_text) {
        *out->at++ = '"';
        put_base64(out, body, body_end);
        *out->at++ = '"';
    }
    put_word(out, "body_encoding", is_text ? "utf-8" : "base64");
    put_null(out, "body_compression");
    put_null(out, "kind");
    put_name(out, "stored_topic");
    put_string(out, topic, topic_end);
    put_int(out, "stored_queue", i32_at(record + OFFSET_QUEUE_ID));
    put_null(out, "body_problem");
    put_null(out, "damage");
    put_name(out, "doubtful");
    put(out, out->csv ? "\"\"" : "[]");
    put_name(out, "place");
    memcpy(out->at, place->file, (size_t)place->size);
    out->at += place->size;
    put_number(out, place->position);
    *out->at++ = '"';
    put_int(out, "copy", 0);
    put(out, out->csv ? "\n" : "}\n");
    return true;
}

void mq_write_lines(const uint8_t *data, int64_t size, const int64_t *starts, int64_t count, const int64_t *sizes,
                    int64_t sizes_size, int64_t first, int64_t csv, const uint8_t *file, int64_t file_size, int64_t at,
                    uint8_t *lines, int64_t room, int64_t *result) {
    output out = {.at = lines, .csv = csv != 0};
    int64_t record = most(first, 0);
    for (; record < least(count, sizes_size); record++) {
        int64_t start = starts[record], length = sizes[record], used = out.at - lines;
        if (length <= 0 || length > size || start < 0 || start > size - length) break;
        if (FIXED + (csv ? ROOM_APART : WIDEST) * length > room - used - file_size) break;
        uint8_t *before = out.at;
        origin place = {file, file_size, (int64_t)((uint64_t)at + (uint64_t)start)};
        if (!put_line(&out, data + start, length, &place)) {
            out.at = before;
            break;
        }
    }
    result[0] = record;
    result[1] = out.at - lines;
}
