/* Consume queues: their units against the records that they should name. Source: broker class ConsumeQueue. */
#include "kernels.h"

enum { PRE_BLANK_SIZE = 0x7FFFFFFF };
enum { NOTHING, HOLE, EXPIRED, BEYOND_LOG, LOST, RIGHT, WRONG };

static bool in_ranges(int64_t offset, const int64_t *starts, const int64_t *stops, int64_t count) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (starts[middle] <= offset) low = middle + 1;
        else high = middle;
    }
    return low > 0 && offset < stops[low - 1];
}

/* The cell names the same record as the cell before it or after it. */
static bool repeats(const int64_t *phy_offsets, const int32_t *sizes, int64_t cells, int64_t cell) {
    if (cell > 0 && phy_offsets[cell - 1] == phy_offsets[cell] && sizes[cell - 1] == sizes[cell]) return true;
    return cell + 1 < cells && phy_offsets[cell + 1] == phy_offsets[cell] && sizes[cell + 1] == sizes[cell];
}

int64_t mq_classify_units(
    const int64_t *phy_offsets, int64_t cells, const int32_t *sizes, int64_t sizes_size, const int64_t *tags_codes,
    int64_t tags_size, int64_t first_index, int64_t min_offset, int64_t log_end, const int64_t *damage_starts,
    int64_t damages, const int64_t *damage_stops, int64_t stops_size, const int64_t *row_index, int64_t rows,
    const int64_t *row_offset, int64_t row_offsets, const int32_t *row_size, int64_t row_sizes,
    const int64_t *row_tags, int64_t row_tags_size, const bool *row_lost, int64_t row_losts, int64_t bridged,
    uint8_t *classes, int64_t classes_size, bool *missing, int64_t missing_size) {
    cells = least(least(cells, sizes_size), least(tags_size, classes_size));
    rows = least(least(rows, least(row_offsets, row_sizes)), least(least(row_tags_size, row_losts), missing_size));
    damages = least(damages, stops_size);
    int64_t row = 0, used = cells;
    for (int64_t cell = 0; cell < cells; cell++) {
        if (sizes[cell] <= 0) {
            used = cell;
            break;
        }
        int64_t index = first_index + cell, offset = phy_offsets[cell], size = sizes[cell];
        for (; row < rows && row_index[row] < index; row++) missing[row] = !row_lost[row];
        bool expected = row < rows && row_index[row] == index, inside = 0 < row && row < rows;
        uint8_t kind = WRONG;
        if (offset == 0 && size == PRE_BLANK_SIZE && tags_codes[cell] == 0) {
            kind = HOLE;
            if (expected) missing[row] = !row_lost[row];
        } else if (offset < 0) {
            /* no broker writes one, and ConsumeQueue.recover takes it for the end of the queue */
        } else if (offset < min_offset && !(expected && !row_lost[row]) && !inside) {
            kind = EXPIRED;
        } else if (expected && row_lost[row]) {
            bool stands_in = offset == row_offset[row] && size == row_size[row];
            if (stands_in || repeats(phy_offsets, sizes, cells, cell)) kind = LOST;
        } else if (offset > log_end - size) {
            kind = BEYOND_LOG;
        } else if (!expected && in_ranges(offset, damage_starts, damage_stops, damages)) {
            kind = LOST;
        } else if (expected && offset == row_offset[row] && size == row_size[row] &&
                   tags_codes[cell] == row_tags[row]) {
            kind = RIGHT;
        } else if (!expected && (bridged || inside) && repeats(phy_offsets, sizes, cells, cell)) {
            kind = LOST;
        }
        classes[cell] = kind;
        row += expected;
    }
    for (; row < rows; row++) missing[row] = !row_lost[row];
    return used;
}
