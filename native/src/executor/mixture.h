// The choices that a chunk's rows make among a mixture's experts, sorted by expert.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fewbit {

// Row r of the chunk chooses an expert at each of `used` ranks; a choice has an index, r * used +
// rank, and a place among all choices, where those of one expert stand together by ascending row.
struct Routes {
  int64_t rows, used, experts;
  float* weights;   // by index
  int32_t* chosen;  // by index: the expert
  int32_t* places;  // by index
  int32_t* row_at;  // by place: the row of the chunk
  int32_t* starts;  // [experts + 1] each expert's first place
};

// Places [begin, end) of one expert.
struct Places {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// Bytes that the choices of rows take, `choices` of them all together, and the pointers into one
// such block of memory.
size_t route_bytes(int64_t choices, int64_t experts);
Routes routes_in(void* memory, int64_t rows, int64_t used, int64_t experts);

// Sorts the choices by expert: from `chosen`, fills places, row_at and starts.
void sort_choices(const Routes& routes);

// The places of an expert whose rows lie in [row_begin, row_end).
Places places_of(const Routes& routes, int64_t expert, int64_t row_begin, int64_t row_end);

}  // namespace fewbit
