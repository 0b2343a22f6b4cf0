/* Passes over rows in log order: last queue offsets, grouping by queue, tallies of the whole log. */
#include "kernels.h"

void mq_note_last(const record_row *records, int64_t rows, int64_t *last_offset, int64_t queues, int64_t *reached,
                  int64_t reached_size) {
    queues = least(queues, reached_size);
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int32_t queue = it->queue;
        if (!is_index(queue, queues) || !is_numbered(it->sys_flag, it->bits)) continue;
        int64_t before = it->queue_offset - 1;
        if (before <= reached[queue] || before == last_offset[queue]) reached[queue] = it->queue_offset;
        last_offset[queue] = it->queue_offset;
    }
}

int64_t mq_group_rows(const record_row *records, int64_t rows, const bool *wanted, int64_t queues, int64_t *next_place,
                      int64_t places, const int64_t *stops, int64_t stops_size, expected_row *out, int64_t room) {
    queues = least(queues, least(places, stops_size));
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int32_t queue = it->queue;
        if (!is_index(queue, queues) || !wanted[queue] || it->bits & NOT_IN_QUEUE || !is_numbered(it->sys_flag, it->bits))
            continue;
        int64_t place = next_place[queue];
        if (place >= stops[queue] || !is_index(place, room)) return 0;
        out[place] = (expected_row){
            it->queue_offset, it->phy_offset, it->tags_code, it->store_timestamp, it->size, queue, it->bits,
        };
        next_place[queue] = place + 1;
    }
    return 1;
}

enum { CQ_UNIT_SIZE = 20, CQ_UNIT_SIZE_AT = 8, CQ_UNIT_TAGS_AT = 12 };

int64_t mq_unit_sum(const uint8_t *units, int64_t size, int64_t first, int64_t seed) {
    uint64_t sum = 0, place = (uint64_t)first;
    for (int64_t at = 0; at <= size - CQ_UNIT_SIZE; at += CQ_UNIT_SIZE, place++) {
        const uint8_t *unit = units + at;
        sum += place_hash((uint64_t)seed, (int64_t)place, i64_at(unit), i64_at(unit + CQ_UNIT_TAGS_AT),
                          i32_at(unit + CQ_UNIT_SIZE_AT));
    }
    return (int64_t)sum;
}

void mq_tally_rows(const record_row *records, int64_t rows, int64_t seed, queue_tally *queues, int64_t queue_count,
                   int64_t *totals, int64_t totals_size) {
    enum { MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS, TOTALS };
    if (totals_size < TOTALS) return;
    /* local copies, since the compiler must assume that any of these arrays may alias any other */
    int64_t messages = 0, fillers = 0, markers = 0;
    int64_t last_time = totals[LAST_TIME], newest_time = totals[NEWEST_TIME];
    int64_t all_bits = totals[BITS], all_flags = totals[FLAGS];
    for (int64_t row = 0; row < rows; row++) {
        const record_row *it = records + row;
        int64_t bits = it->bits, offset = it->queue_offset;
        if (bits & BIT_STALE || !is_index(it->queue, queue_count)) continue;
        queue_tally *queue = queues + it->queue;
        bool numbered = is_numbered(it->sys_flag, bits);
        if (numbered) {
            if (offset <= queue->last) queue->fallen = true;
            if (queue->last == -1) queue->first = offset;
            queue->last = offset;
        }
        last_time = it->store_timestamp;
        newest_time = most(newest_time, last_time);
        fillers += (bits & BIT_FILLER) != 0;
        markers += (bits & BIT_MARKER) != 0;
        if (bits & BIT_SUPERSEDED) continue;
        messages += (bits & NO_MESSAGE) == 0;
        all_bits |= bits;
        all_flags |= it->sys_flag;
        if (numbered && !(bits & BIT_MISNUMBERED)) {
            if (offset < queue->least) queue->least = offset;
            if (offset > queue->most) queue->most = offset;
            queue->positions++;
            queue->sum += place_hash((uint64_t)seed, offset, it->phy_offset, it->tags_code, it->size);
            queue->bits |= it->bits;
        }
    }
    totals[MESSAGES] += messages;
    totals[FILLERS] += fillers;
    totals[MARKERS] += markers;
    totals[LAST_TIME] = last_time, totals[NEWEST_TIME] = newest_time;
    totals[BITS] = all_bits, totals[FLAGS] = all_flags;
}
