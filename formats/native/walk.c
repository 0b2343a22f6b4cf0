/* The walk over records of the log. It may only say yes: the reference codec judges whatever it does not accept
 * (`formats/record/grammar.py`). */
#include "kernels.h"
#include "layout.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    PROPERTY_CRC_SIZE = 20, PROPERTY_CRC_DIGITS = 10,
    SHORT_DIGITS = 4, LONG_DIGITS = 18, QUEUE_ID_DIGITS = 9, TIME_DIGITS = 18, DELAY_DIGITS = 9,
    PROBES = 256,
    SERVED = 0, UNSERVED = 1, UNSURE = 2,
};
#define SKIPPABLE_MASK 0xF0FFFFFFu

/* Text of the log: `length` bytes from `at`. */
typedef struct { const uint8_t *at; int64_t length; } text;
#define TEXT(literal) ((text){(const uint8_t *)(literal), sizeof(literal) - 1})

PART bool is_same(text a, text b) { return a.length == b.length && !memcmp(a.at, b.at, (size_t)a.length); }

/* For the up to 64 bytes from `at` to `stop`: bit k is set if byte k is below 3. */
PART uint64_t below_3(const uint8_t *at, const uint8_t *stop, const uint8_t *readable) {
    uint64_t found = 0;
    int64_t length = stop - at;
#if defined(__SSE2__)
    if (readable - at >= 64) {
        __m128i two = _mm_set1_epi8(2);
        for (int k = 0; k < 4; k++) {
            __m128i block = _mm_loadu_si128((const __m128i *)at + k);
            __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(block, two), block);
            found |= (uint64_t)(uint32_t)_mm_movemask_epi8(low) << 16 * k;
        }
        return length < 64 ? found & ((1ull << length) - 1) : found;
    }
#endif
    (void)readable;
    for (int64_t k = 0; k < length && k < 64; k++) found |= (uint64_t)(at[k] < 3) << k;
    return found;
}

PART bool is_number(text it, int64_t digits) {
    if (it.length <= 0 || it.length > digits) return false;
    for (int64_t i = 0; i < it.length; i++)
        if (it.at[i] < '0' || it.at[i] > '9') return false;
    return true;
}

/* Java's String.hashCode over the UTF-16 units of strict UTF-8, continued from *hash; false if malformed. */
static bool java_hash_of_any(text it, uint32_t *hash) {
    uint32_t h = *hash;
    const uint8_t *p = it.at, *stop = p + it.length;
    while (p < stop) {
        uint32_t b = *p, point, lowest;
        int extra;
        if (b < 0x80) {
            h = 31 * h + b;
            p++;
            continue;
        }
        if (b >= 0xC2 && b <= 0xDF) extra = 1, point = b & 0x1F, lowest = 0x80;
        else if (b >= 0xE0 && b <= 0xEF) extra = 2, point = b & 0x0F, lowest = 0x800;
        else if (b >= 0xF0 && b <= 0xF4) extra = 3, point = b & 0x07, lowest = 0x10000;
        else return false;
        if (extra >= stop - p) return false;
        for (int k = 1; k <= extra; k++) {
            if ((p[k] & 0xC0) != 0x80) return false;
            point = point << 6 | (p[k] & 0x3F);
        }
        if (point < lowest || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return false;
        if (point >= 0x10000) {
            point -= 0x10000;
            h = 31 * h + (0xD800 | point >> 10);
            point = 0xDC00 | (point & 0x3FF);
        }
        h = 31 * h + point;
        p += extra + 1;
    }
    *hash = h;
    return true;
}

/* The same, fast for ASCII. At least 16 bytes of the record precede the text, as its head does. */
PART bool java_hash(text it, uint32_t *hash) {
#if defined(__SSE2__)
    static const uint8_t kept[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                     255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    /* powers of 31 */
    static const uint32_t powers[17] = {
        1u, 31u, 961u, 29791u, 923521u, 28629151u, 887503681u, 887503681u * 31u, 887503681u * 961u,
        887503681u * 29791u, 887503681u * 923521u, 887503681u * 28629151u, 887503681u * 887503681u,
        887503681u * 887503681u * 31u, 887503681u * 887503681u * 961u, 887503681u * 887503681u * 29791u,
        887503681u * 887503681u * 923521u,
    };
    const __m128i zero = _mm_setzero_si128();
    uint32_t h = *hash;
    int64_t odd = it.length & 15;
    const uint8_t *p = it.at + odd - 16, *stop = it.at + it.length;
    /* bytes before the text count as zeros, which leave a hash of zero unchanged */
    __m128i mask = _mm_loadu_si128((const __m128i *)(kept + odd));
    uint32_t factor = powers[odd];
    if (!odd) p += 16, mask = _mm_set1_epi8(-1), factor = powers[16];
    for (; p < stop; p += 16) {
        __m128i block = _mm_and_si128(_mm_loadu_si128((const __m128i *)p), mask);
        if (_mm_movemask_epi8(block)) return java_hash_of_any(it, hash);
        /* pairs, fours: 31 a + b, then 961 (31 a + b) + (31 c + d) */
        __m128i by_31 = _mm_set1_epi32(1 << 16 | 31), by_961 = _mm_set1_epi32(1 << 16 | 961);
        __m128i low = _mm_madd_epi16(_mm_unpacklo_epi8(block, zero), by_31);
        __m128i high = _mm_madd_epi16(_mm_unpackhi_epi8(block, zero), by_31);
        uint32_t fours[4];
        _mm_storeu_si128((__m128i *)fours, _mm_madd_epi16(_mm_packs_epi32(low, high), by_961));
        h = h * factor + fours[0] * powers[12] + fours[1] * powers[8] + fours[2] * powers[4] + fours[3];
        mask = _mm_set1_epi8(-1), factor = powers[16];
    }
    *hash = h;
    return true;
#else
    return java_hash_of_any(it, hash);
#endif
}

/* As IndexFile.indexKeyHashMethod: the absolute value, 0 if there is none. */
PART int32_t key_hash(uint32_t h) {
    int32_t value = (int32_t)h;
    return value == INT32_MIN ? 0 : value < 0 ? -value : value;
}

/* Whether a topic has only bytes that TopicValidator accepts. */
PART bool is_plain_topic(text topic) {
    static const char plain[] = "%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (int64_t i = 0; i < topic.length; i++)
        if (!memchr(plain, topic.at[i], sizeof plain - 1)) return false;
    return true;
}

/* --- the table of (topic, queue id) pairs: names in one array, an open hash over the rows --- */

typedef struct {
    int32_t *slots;
    int64_t slot_count;
    uint8_t *names;
    int64_t name_room;
    int64_t *rows;
    int64_t room;
    uint64_t seed;
} queue_table;

/* Keyed with `seed`, so that nobody can choose topics that share a slot; `queue_hash` of walk.py is the same. */
PART uint64_t folded(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

PART uint64_t queue_hash(text topic, int64_t queue_id, uint64_t seed) {
    uint64_t h = seed ^ (uint64_t)topic.length, word;
    const uint8_t *p = topic.at;
    int64_t left = topic.length;
    for (; left >= (int64_t)sizeof word; p += sizeof word, left -= (int64_t)sizeof word) {
        memcpy(&word, p, sizeof word);
        h = folded(h ^ word, seed | 1);
    }
    /* the rest in pieces of known length: one of a length that is not known waits for its own bytes */
    if (left > 0) {
        uint32_t four = 0;
        uint16_t two = 0;
        word = 0;
        if (left & 1) word = p[left - 1];
        if (left & 2) memcpy(&two, p + (left & 4), sizeof two), word = word << 16 | two;
        if (left & 4) memcpy(&four, p, sizeof four), word = word << 32 | four;
        h = folded(h ^ word, seed | 1);
    }
    return folded(h ^ (uint64_t)queue_id, seed | 1);
}

/* Number of a queue whose hash is h, -1 if the table does not have it. */
PART int64_t find_queue(const queue_table *table, text topic, int64_t queue_id, uint64_t h) {
    for (int64_t step = 0; step < PROBES; step++) {
        int64_t number = table->slots[(h + (uint64_t)step) & (uint64_t)(table->slot_count - 1)];
        if (!is_index(number, table->room)) return -1;
        const int64_t *row = table->rows + number * QUEUE_COLUMNS;
        if (row[2] == queue_id && row[1] == topic.length && row[0] >= 0 && row[0] <= table->name_room - topic.length &&
            !memcmp(table->names + row[0], topic.at, (size_t)topic.length))
            return number;
    }
    return -1;
}

/* Put a number into the first free slot, starting at the queue's own; false if none of PROBES is free. */
static bool take_slot(int32_t *slots, int64_t slot_count, uint64_t h, int64_t number) {
    for (int64_t step = 0; step < PROBES; step++) {
        int32_t *slot = slots + ((h + (uint64_t)step) & (uint64_t)(slot_count - 1));
        if (*slot < 0) {
            *slot = (int32_t)number;
            return true;
        }
    }
    return false;
}

/* Add a queue to the table as number `queues`; -1 if it is full. */
static int64_t enter_queue(queue_table *table, text topic, int64_t queue_id, uint64_t h, int64_t queues,
                           int64_t names_used) {
    if (queues >= table->slot_count / 2 || !is_index(queues, table->room) || names_used < 0 ||
        topic.length > table->name_room - names_used || !take_slot(table->slots, table->slot_count, h, queues))
        return -1;
    memcpy(table->names + names_used, topic.at, (size_t)topic.length);
    int64_t *row = table->rows + queues * QUEUE_COLUMNS;
    row[0] = names_used, row[1] = topic.length, row[2] = queue_id;
    return queues;
}

int64_t mq_fill_slots(int32_t *slots, int64_t slot_count, const uint8_t *names, int64_t name_room,
                      const int64_t *rows, int64_t queue_room, int64_t first, int64_t queues, int64_t seed) {
    if (slot_count < 1 || slot_count & (slot_count - 1)) return 0;
    for (int64_t number = most(first, 0); number < least(queues, queue_room); number++) {
        const int64_t *row = rows + number * QUEUE_COLUMNS;
        if (row[0] < 0 || row[1] < 0 || row[1] > name_room || row[0] > name_room - row[1]) continue;
        text topic = {names + row[0], row[1]};
        if (!take_slot(slots, slot_count, queue_hash(topic, row[2], (uint64_t)seed), number)) return 0;
    }
    return 1;
}

/* --- one record --- */

typedef struct {
    record_row *rows;
    int64_t row_room;
    int32_t *hashes;
    int64_t hash_room;
    queue_table queues;
    int64_t *state; /* rows, hashes, queues, bytes of names */
    bool with_keys;
} output;

typedef struct {
    int64_t bits, count, tags_code;
    text real_topic, real_queue, due; /* the properties that a broker's service reads; missing ones have no address */
} properties;

/* A range of a field of the head: see range_table of formats/record/grammar.py. */
typedef struct {
    int64_t size, least, most, offsets[4];
} range;

/* Whether each field is inside the head, for every combination of hosts. */
static bool are_in_head(const range *ranges, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        for (int hosts = 0; hosts < 4; hosts++) {
            int64_t at = ranges[k].offsets[hosts], head = HEAD_SIZE + IPV6_EXTRA * ((hosts & 1) + (hosts >> 1));
            if ((ranges[k].size != 4 && ranges[k].size != 8) || at < 0 || at > head - ranges[k].size) return false;
        }
    return true;
}

PART bool has_values(const uint8_t *record, int hosts, const range *ranges, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        const uint8_t *at = record + ranges[k].offsets[hosts];
        int64_t value = ranges[k].size == 8 ? i64_at(at) : i32_at(at);
        if (value < ranges[k].least || value > ranges[k].most) return false;
    }
    return true;
}

/* Hash one index key, seeded with the topic's hash; FALLBACK, OUTPUT_FULL, or NEED_MORE for success. */
PART int take_key(text key, uint32_t seed, output *out, int64_t number) {
    if (!java_hash(key, &seed)) return FALLBACK;
    if (number >= out->hash_room) return OUTPUT_FULL;
    out->hashes[number] = key_hash(seed);
    return NEED_MORE;
}

/* Read the properties that matter to queues, to services and, with `with_keys`, to index and tags codes. */
static int take_properties(text all, const uint8_t *readable, text topic, output *out, properties *found) {
    bool with_keys = out->with_keys;
    text tags = {0}, words = {0}, uniq = {0}, delay = {0}, base = {0}, number = {0};
    const uint8_t *i = all.at, *end = all.at + all.length, *block = i;
    uint64_t marks = below_3(block, end, readable);
    *found = (properties){0};
    while (i < end) {
        /* the next byte below 3 must separate name and value, the one after it must end the item; a zero instead is
         * most likely a page that never reached the disk */
        while (!marks && end - block > 64) block += 64, marks = below_3(block, end, readable);
        if (!marks) return FALLBACK;
        const uint8_t *split = block + __builtin_ctzll(marks);
        if (*split != 1) return FALLBACK;
        marks &= marks - 1;
        while (!marks && end - block > 64) block += 64, marks = below_3(block, end, readable);
        const uint8_t *stop = marks ? block + __builtin_ctzll(marks) : end;
        marks &= marks - 1;
        if (split == i || split + 1 == stop || (stop < end && *stop != 2)) return FALLBACK;
        text name = {i, split - i}, value = {split + 1, stop - split - 1};
        switch (name.length) {
        case 4:
            if (is_same(name, TEXT("TAGS"))) tags = value;
            else if (is_same(name, TEXT("KEYS"))) words = value;
            break;
        case 5:
            if (is_same(name, TEXT("DELAY"))) delay = value;
            break;
        case 8:
            if (is_same(name, TEXT("UNIQ_KEY"))) uniq = value;
            else if (is_same(name, TEXT("REAL_QID"))) found->real_queue = value;
            break;
        case 9:
            if (is_same(name, TEXT("INNER_NUM"))) number = value, found->bits |= BIT_INNER_BATCH;
            break;
        case 10:
            if (is_same(name, TEXT("INNER_BASE"))) base = value;
            else if (is_same(name, TEXT("REAL_TOPIC"))) found->real_topic = value;
            break;
        case 11:
            if (is_same(name, TEXT("MQTOOL_LOST"))) found->bits |= BIT_MARKER;
            break;
        case 12:
            if (is_same(name, TEXT("TIMER_OUT_MS"))) found->due = value;
            break;
        case 20:
            if (is_same(name, TEXT("INNER_MULTI_DISPATCH"))) found->bits |= BIT_LMQ;
            break;
        }
        i = stop + 1;
    }
    if (number.at && base.at && !(is_number(number, SHORT_DIGITS) && is_number(base, LONG_DIGITS))) return FALLBACK;
    int64_t first = out->state[1];
    uint32_t prefix = 0;
    if (with_keys && !java_hash(topic, &prefix)) return FALLBACK;
    prefix = 31 * prefix + '#';
    int status = NEED_MORE;
    if (uniq.at) {
        found->bits |= BIT_HAS_UNIQ;
        if (with_keys && (status = take_key(uniq, prefix, out, first)) != NEED_MORE) return status;
        found->count += with_keys;
    }
    for (const uint8_t *word = words.at, *stop = word + words.length; with_keys && word < stop;) {
        const uint8_t *space = memchr(word, ' ', (size_t)(stop - word));
        if (!space) space = stop;
        if (space > word) {
            text key = {word, space - word};
            if ((status = take_key(key, prefix, out, first + found->count)) != NEED_MORE) return status;
            found->count++;
        }
        word = space + 1;
    }
    if (tags.at) {
        uint32_t code = 0;
        found->bits |= BIT_HAS_TAGS;
        if (with_keys) {
            if (!java_hash(tags, &code)) return FALLBACK;
            found->tags_code = (int32_t)code;
            status = take_key(tags, 31 * (31 * prefix + 'T') + '#', out, first + found->count);
            if (status != NEED_MORE) return status;
        }
        found->count += with_keys;
    }
    if (delay.at && is_same(topic, TEXT("SCHEDULE_TOPIC_XXXX"))) {
        int64_t level = 0;
        if (!is_number(delay, DELAY_DIGITS)) return FALLBACK;
        for (int64_t k = 0; k < delay.length; k++) level = level * 10 + delay.at[k] - '0';
        if (level > 0) found->bits |= BIT_DELAY, found->tags_code = level;
    }
    return NEED_MORE;
}

/* SERVED, UNSERVED or UNSURE, by the properties that `take_properties` found (`formats.record.grammar`). */
static int service_of(text topic, const properties *found) {
    bool is_timer = is_same(topic, TEXT("rmq_sys_wheel_timer"));
    if (!is_timer && !is_same(topic, TEXT("SCHEDULE_TOPIC_XXXX")) && !is_same(topic, TEXT("RMQ_SYS_TRANS_HALF_TOPIC")) &&
        !is_same(topic, TEXT("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")))
        return SERVED;
    bool has_topic = found->real_topic.at, has_queue = is_number(found->real_queue, QUEUE_ID_DIGITS);
    bool has_time = is_timer && is_number(found->due, TIME_DIGITS);
    if (has_topic && !is_plain_topic(found->real_topic)) return UNSURE;
    if (has_topic && has_queue && (has_time || !is_timer)) return SERVED;
    return has_topic || has_queue || has_time ? UNSERVED : SERVED;
}

/* See `formats.sysflag.contradicted_by`. */
static bool is_contradicted(text body, int64_t sys_flag) {
    int64_t kind = sys_flag & COMPRESSION_TYPE;
    bool is_zlib = false, is_lz4 = false, is_zstd = false;
    if (body.length >= 2) {
        uint32_t head = u16_at(body.at);
        is_zlib = (head >> 8 & 0x8F) == ZLIB_METHOD && head % ZLIB_CHECK == 0;
    }
    if (body.length >= 4) {
        uint32_t magic = u32_at(body.at);
        bool is_skippable = (magic & SKIPPABLE_MASK) == SKIPPABLE_MAGIC;
        is_lz4 = magic == LZ4_MAGIC || is_skippable, is_zstd = magic == ZSTD_MAGIC || is_skippable;
        is_zlib = is_zlib && !is_lz4 && !is_zstd;
    }
    if (!(sys_flag & COMPRESSED)) return kind && (is_zlib || is_lz4 || is_zstd);
    if (kind == COMPRESSION_LEGACY_ZLIB || kind == COMPRESSION_ZLIB) return body.length > 0 && !is_zlib;
    return body.length > 0 && !(is_lz4 && kind == COMPRESSION_LZ4) && !(is_zstd && kind == COMPRESSION_ZSTD);
}

/* Whether the ten digits at the record's end, the lowest first, are the CRC of the bytes before them. */
static bool property_crc_fits(const uint8_t *record, int64_t size) {
    const uint8_t *end = record + size;
    int64_t value = 0;
    if (end[-1] != 2) return false;
    for (int k = 0; k < PROPERTY_CRC_DIGITS; k++) {
        int digit = end[-2 - k] - '0';
        if (digit < 0 || digit > 9) return false;
        value = value * 10 + digit;
    }
    return value == (crc32_of(record, size - PROPERTY_CRC_SIZE) & 0x7FFFFFFF);
}

/* Check the record of `size` bytes, in memory up to `readable`, and fill one row; NEED_MORE means accepted. */
static int take_record(const uint8_t *record, int64_t size, int64_t offset, bool is_v2, const uint8_t *readable,
                       const range *ranges, int64_t range_count, output *out) {
    const uint8_t *end = record + size;
    int64_t sys_flag = i32_at(record + OFFSET_SYS_FLAG);
    int64_t born_v6 = sys_flag & BORNHOST_V6 ? IPV6_EXTRA : 0;
    int64_t v6 = born_v6 + (sys_flag & STOREHOST_V6 ? IPV6_EXTRA : 0);
    int64_t topic_field = is_v2 ? 2 : 1;
    if (size < HEAD_SIZE + v6 + topic_field + 2) return FALLBACK;
    int64_t queue_id = i32_at(record + OFFSET_QUEUE_ID), queue_offset = i64_at(record + OFFSET_QUEUE_OFFSET);
    int64_t stored = i64_at(record + OFFSET_STORE_TIMESTAMP + born_v6);
    if (!has_values(record, (int)(sys_flag >> 4 & 3), ranges, range_count)) return FALLBACK;
    text body = {record + HEAD_SIZE + v6, i32_at(record + OFFSET_BODY_LENGTH + v6)};
    if (body.length < 0 || body.length + topic_field + 2 > end - body.at) return FALLBACK;
    const uint8_t *at = body.at + body.length + topic_field;
    text topic = {at, is_v2 ? i16_at(at - 2) : (int8_t)at[-1]};
    if (topic.length < 1 || topic.length + 2 > end - at) return FALLBACK;
    at += topic.length + 2;
    text all = {at, i16_at(at - 2)};
    if (all.length < 0 || all.length != end - at) return FALLBACK;
    uint64_t h = queue_hash(topic, queue_id, out->queues.seed);
    int64_t queue = find_queue(&out->queues, topic, queue_id, h);
    /* topics in the table were checked before */
    if (queue < 0 && !is_plain_topic(topic)) return FALLBACK;
    if (body.length && (crc32_of(body.at, body.length) & 0x7FFFFFFF) != (uint32_t)i32_at(record + OFFSET_BODY_CRC))
        return FALLBACK;
    int64_t bits = is_v2 ? BIT_V2 : 0;
    if (all.length >= PROPERTY_CRC_SIZE && !memcmp(end - PROPERTY_CRC_SIZE, "__CRC32#\x01", 9)) {
        if (!property_crc_fits(record, size)) return FALLBACK;
        bits |= BIT_PROP_CRC;
    } else if (sys_flag & (COMPRESSED | COMPRESSION_TYPE) && is_contradicted(body, sys_flag)) {
        bits |= BIT_CONTRADICTED_FLAG;
    }
    properties found;
    int status = take_properties(all, readable, topic, out, &found);
    if (status != NEED_MORE) return status;
    if (!(bits & BIT_PROP_CRC)) {
        int service = service_of(topic, &found);
        if (service == UNSURE) return FALLBACK;
        if (service == UNSERVED) bits |= BIT_UNSERVED;
    }
    int64_t *state = out->state;
    /* last, so that only accepted records add a queue to the table: otherwise its number would be assigned twice */
    if (queue < 0) {
        queue = enter_queue(&out->queues, topic, queue_id, h, state[2], state[3]);
        if (queue < 0) return OUTPUT_FULL;
        state[2]++;
        state[3] += topic.length;
    }
    if ((sys_flag & TRANSACTION) == TRANSACTION_ROLLBACK) {
        text filler = TEXT("MQTOOL_FILLER");
        found.count = 0; /* IndexService.buildIndex skips these */
        /* filler for a narrow range has a prefix of the name as its topic */
        if (topic.length <= filler.length && !memcmp(topic.at, filler.at, (size_t)topic.length)) bits |= BIT_FILLER;
    }
    out->rows[state[0]++] = (record_row){
        .phy_offset = offset, .queue_offset = queue_offset, .store_timestamp = stored, .tags_code = found.tags_code,
        .size = (int32_t)size, .queue = (int32_t)queue, .sys_flag = (int32_t)sys_flag,
        .bits = (uint16_t)(bits | found.bits), .hashes = (uint16_t)found.count,
    };
    state[1] += found.count;
    return NEED_MORE;
}

/* --- the walk --- */

void mq_walk_records(
    const uint8_t *data, int64_t size, int64_t position, int64_t available, int64_t window_offset, int64_t file_end,
    record_row *records, int64_t rows, int32_t *hashes, int64_t hash_room, int32_t *slots, int64_t slot_count,
    uint8_t *names, int64_t name_room, int64_t *queue_rows, int64_t queue_room, int64_t seed, int64_t *state,
    int64_t state_size, int64_t with_keys, int64_t stop, const int64_t *range_rows, int64_t range_count, int64_t *result) {
    const range *ranges = (const range *)range_rows;
    output out = {records, rows, hashes, hash_room,
                  {slots, slot_count, names, name_room, queue_rows, queue_room, (uint64_t)seed},
                  state, with_keys != 0};
    int64_t limit = within(available, size);
    int status;
    result[0] = position;
    result[1] = FALLBACK;
    if (position < 0 || state[1] < 0 || slot_count < 1 || slot_count & (slot_count - 1) ||
        !are_in_head(ranges, range_count))
        return;
    (void)state_size;
    for (;;) {
        status = OUTPUT_FULL;
        if (!is_index(state[0], rows)) break;
        status = NEED_MORE;
        if (position >= stop) break;
        int64_t length = BLANK_SIZE;
        int32_t magic = 0;
        if (position <= limit - length) {
            magic = (int32_t)u32_at(data + position + OFFSET_MAGIC);
            status = magic == MAGIC_BLANK ? AT_BLANK : FALLBACK;
            if (magic != MAGIC_V1 && magic != MAGIC_V2) break;
            length = i32_at(data + position);
            if (length < MIN_RECORD_SIZE || window_offset + position + length + BLANK_SIZE > file_end) break;
        }
        if (position > limit - length) {
            status = NEED_MORE;
            break;
        }
        const uint8_t *record = data + position;
        status = FALLBACK;
        if (i64_at(record + OFFSET_PHY_OFFSET) != window_offset + position) break;
        status = take_record(record, length, window_offset + position, magic == MAGIC_V2, data + limit, ranges,
                             range_count, &out);
        if (status != NEED_MORE) break;
        position += length;
    }
    result[0] = position;
    result[1] = status;
}
