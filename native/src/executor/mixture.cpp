#include "executor/mixture.h"

#include <algorithm>

namespace fewbit {

size_t route_bytes(int64_t choices, int64_t experts) {
  return sizeof(int32_t) * static_cast<size_t>(4 * choices + experts + 1);
}

Routes routes_in(void* memory, int64_t rows, int64_t used, int64_t experts) {
  const int64_t choices = rows * used;
  auto* weights = static_cast<float*>(memory);
  auto* chosen = reinterpret_cast<int32_t*>(weights + choices);
  return {rows,
          used,
          experts,
          weights,
          chosen,
          chosen + choices,
          chosen + 2 * choices,
          chosen + 3 * choices};
}

void sort_choices(const Routes& routes) {
  const int64_t choices = routes.rows * routes.used;
  int32_t* starts = routes.starts;
  std::fill_n(starts, routes.experts + 1, 0);
  for (int64_t i = 0; i < choices; ++i) ++starts[routes.chosen[i]];
  // Each expert's end, moved down to its start while its choices are placed from the last on.
  for (int64_t expert = 0; expert < routes.experts; ++expert) starts[expert + 1] += starts[expert];
  for (int64_t i = choices - 1; i >= 0; --i) {
    const int32_t place = --starts[routes.chosen[i]];
    routes.places[i] = place;
    routes.row_at[place] = static_cast<int32_t>(i / routes.used);
  }
}

Places places_of(const Routes& routes, int64_t expert, int64_t row_begin, int64_t row_end) {
  const int32_t* first = routes.row_at + routes.starts[expert];
  const int32_t* last = routes.row_at + routes.starts[expert + 1];
  const int32_t* begin = std::lower_bound(first, last, static_cast<int32_t>(row_begin));
  const int32_t* end = std::lower_bound(begin, last, static_cast<int32_t>(row_end));
  return {begin - routes.row_at, end - routes.row_at};
}

}  // namespace fewbit
