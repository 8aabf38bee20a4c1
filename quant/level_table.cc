#include "quant/level_table.h"

#include <limits>

namespace lpsgd {

namespace {

constexpr int points = IntervalCost::points;

/// best[k][b]: the smallest cost of [0, b] in k intervals, from[k][b] the level before b that gives it. The
/// cost is concave in the sense of Monge: (x-a)(c-x) + (x-b)(d-x) <= (x-a)(d-x) + (x-b)(c-x) for a <= b <= c
/// <= d; so the smallest best `from` grows with b, and each half of the b's needs one half of the candidates.
struct Row {
  std::int64_t best[points];
  std::int16_t from[points];
};

void fill(const IntervalCost& cost, const Row& above, Row& row, int first, int last, int lowest,
          int highest) {
  if (first > last) return;
  const int b = (first + last) / 2;
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  int from = lowest;
  for (int a = lowest; a <= highest && a < b; ++a) {
    const std::int64_t total = above.best[a] + cost(a, b);
    if (total < best) {
      best = total;
      from = a;
    }
  }
  row.best[b] = best;
  row.from[b] = static_cast<std::int16_t>(from);
  fill(cost, above, row, first, b - 1, lowest, from);
  fill(cost, above, row, b + 1, last, from, highest);
}

}  // namespace

void choose_levels(const std::int64_t counts[256], int intervals, std::int32_t* levels) {
  IntervalCost cost;
  cost.sum_up(counts);
  thread_local Row rows[points];
  for (int b = 1; b < points; ++b) {
    rows[1].best[b] = cost(0, b);
    rows[1].from[b] = 0;
  }
  for (int k = 2; k <= intervals; ++k)
    fill(cost, rows[k - 1], rows[k], k, points - 1 - (intervals - k), k - 1, points - 2 - (intervals - k));
  levels[intervals] = points - 1;
  for (int k = intervals; k > 0; --k) levels[k - 1] = rows[k].from[levels[k]];
}

}  // namespace lpsgd
