#include "executor/step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/ops.h"

namespace fewbit {

namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (append(parts), ...);
  throw std::invalid_argument(text);
}

void check_pages(const Span& span, size_t index, int64_t pages) {
  const int64_t needed = (span.position + span.count + kPage - 1) / kPage;
  if (span.page_count < needed) {
    refuse("span ", index, " ends at position ", span.position + span.count - 1, " but has ",
           span.page_count, " pages; it needs ", needed, ".");
  }
  for (int64_t i = 0; i < needed; ++i) {
    if (span.pages[i] < 0 || span.pages[i] >= pages) {
      refuse("page ", span.pages[i], " of span ", index, " is outside the store, which has ", pages,
             " pages.");
    }
  }
}

void check_span(const Span& span, size_t index, int64_t start, int64_t rows, int64_t context) {
  if (span.count < 1 || span.start != start || span.count > rows - start) {
    refuse("span ", index, " covers rows ", span.start, " to ", span.start + span.count - 1,
           "; spans must cover the ", rows, " rows in order, and this one must start at row ",
           start, ".");
  }
  if (span.position < 0 || span.position > context - span.count) {
    refuse("span ", index, " ends at position ", span.position + span.count - 1,
           ", outside the model's context of ", context, " positions.");
  }
}

void check_trunk(const StepInput& step, size_t index) {
  const Span& span = step.spans[index];
  if (span.trunk == -1) return;
  if (span.trunk < 0 || span.trunk >= static_cast<int64_t>(index)) {
    refuse("span ", index, " branches off span ", span.trunk, "; its trunk must come before it.");
  }
  const Span& trunk = step.spans[static_cast<size_t>(span.trunk)];
  if (trunk.trunk != -1) {
    refuse("span ", index, " branches off span ", span.trunk, ", which is a branch itself.");
  }
  if (span.position <= trunk.position || span.position > trunk.position + trunk.count) {
    refuse("span ", index, " starts at position ", span.position, "; it must follow a row of its ",
           "trunk, which has positions ", trunk.position, " to ", trunk.position + trunk.count - 1,
           ".");
  }
  const int64_t needed = (span.position + span.count + kPage - 1) / kPage;
  for (int64_t i = trunk.position / kPage; i < std::min(needed, trunk.page_count); ++i) {
    if (span.pages[i] == trunk.pages[i]) {
      refuse("span ", index, " writes to page ", span.pages[i], " of its trunk; it needs its own.");
    }
  }
}

}  // namespace

void check_step(const StepInput& step, const Program& program, int64_t pages) {
  for (int64_t row = 0; row < step.rows; ++row) {
    if (step.tokens[row] < 0 || step.tokens[row] >= program.vocabulary) {
      refuse("token ", step.tokens[row], " in row ", row, " is outside the vocabulary of ",
             program.vocabulary, ".");
    }
  }
  int64_t covered = 0;
  for (size_t i = 0; i < step.spans.size(); ++i) {
    check_span(step.spans[i], i, covered, step.rows, program.context);
    check_pages(step.spans[i], i, pages);
    check_trunk(step, i);
    covered += step.spans[i].count;
  }
  if (covered != step.rows) {
    refuse("the spans cover ", covered, " rows of ", step.rows, "; they must cover them all.");
  }
  for (int64_t i = 0; i < step.wanted_count; ++i) {
    if (step.wanted[i] < 0 || step.wanted[i] >= step.rows) {
      refuse("wanted row ", step.wanted[i], " is outside the step's ", step.rows, " rows.");
    }
  }
}

}  // namespace fewbit
